// Where the members of a new epoch go on, and from what (design 3). Each says in the epoch's first
// exchange what it holds; all compute the same decision from the same offers, so that nobody has to
// be asked. The coordinator only says who takes part. Pure.
//
// A step is committed once its agreement returned on any rank. Whoever holds final gradients of it
// (entered the agreement) can finish it then: the update itself talks to nobody. So
//
//   - iteration k + 1 is offered by a member that committed it, and by one that holds the final
//     gradients of step k + 1 when any member knows the agreement's result;
//   - the decision is the highest iteration that the offers cover: each piece of the state (see
//     state_pieces.h) is held by somebody. Live state counts before snapshots of the same
//     iteration;
//   - nothing covers the state: the newest complete checkpoint, else the beginning.
//
// The model that this is proven with: tests/common/recovery/recovery_model.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/control/agreement.h"

namespace muster {

struct HeldState {
  enum class Kind {
    kLive,
    kOwnSnapshot,
    kBuddySnapshot
  };  // the first of an iteration is preferred
  Kind kind = Kind::kLive;
  int64_t iteration = 0;        // committed steps that it contains
  std::string layout;           // pieces of different layouts do not add up
  std::vector<int64_t> pieces;  // sorted
  int64_t num_pieces = 0;       // of the whole job in this layout
  bool operator==(const HeldState&) const = default;
};

struct MemberOffer {
  std::vector<HeldState> held;
  // Final gradients of the step after its live state are here: it entered that step's agreement.
  bool prepared = false;
  // The result of that agreement, when it returned here. Kept until the next one returns.
  std::optional<AgreementVector> agreed;
  int64_t agreed_iteration = 0;  // the step that `agreed` is of; 0: none
  int64_t checkpoint =
      -1;  // iteration of the newest complete checkpoint; -1: none. Member 0's counts
  bool operator==(const MemberOffer&) const = default;
};

struct RestoreDecision {
  enum class Source { kBeginning, kCheckpoint, kSnapshot, kLive };
  Source source = Source::kBeginning;  // the least of what any member uses
  int64_t iteration = 0;               // where all go on: committed steps
  std::string layout;                  // of what is used, when from memory
  // Members that are one step behind finish it with this vector before they offer anything.
  std::optional<AgreementVector> finish_with;
  struct Member {
    bool finishes = false;  // its prepared step
    std::optional<int>
        keeps;               // index in `held` of what it goes on with; none: it is given its state
    std::vector<int> gives;  // indices in `held` of what others may be filled from
    bool operator==(const Member&) const = default;
  };
  std::vector<Member> members;  // in the order of the offers
  std::string reason;           // "iteration 12 from live state; members 2 filled from 0"
  bool operator==(const RestoreDecision&) const = default;
};

// INVALID_ARGUMENT: offers contradict each other (two agreement results of one step differ, live
// states more than one step apart), which says that a member is not of this job's last epoch.
absl::StatusOr<RestoreDecision> DecideRestore(const std::vector<MemberOffer>& offers);

// One line for the exchange between ranks, and back.
std::string EncodeOffer(const MemberOffer& offer);
absl::StatusOr<MemberOffer> DecodeOffer(absl::string_view text);

}  // namespace muster
