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
//   - nothing covers the state, or a checkpoint is newer: the newest complete checkpoint, else the
//     beginning.
//
// Live states may be any number of steps apart: a recovery that was hit in its middle leaves some
// members with the old state and some with the restored one.
//
// Epochs in what is held keep trajectories apart. A step that was rolled back and run again in a
// later epoch need not have the same bits (another layout, another order of a reduction), so its
// pieces must not be mixed with those of the first run. Two states are of one trajectory when the
// agreement of their last step was the same one: same iteration, same epoch.
//
// The model that this is proven with: tests/common/recovery/recovery_model.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  int64_t epoch = 0;            // of the agreement that committed its last step; it travels with
                                // the state into snapshots and fills. 0: beginning or checkpoint
  std::string layout;           // pieces of different layouts do not add up
  std::vector<int64_t> pieces;  // sorted
  int64_t num_pieces = 0;       // of the whole job in this layout
  bool operator==(const HeldState&) const = default;
};

struct MemberOffer {
  std::vector<HeldState> held;  // one kLive at most
  // What it must hold in the new epoch: StatePieces::layout and of_rank[rank]; none for a helper.
  std::string layout;
  std::vector<int64_t> needs;
  // Final gradients of the step after its live state are here: it entered that step's agreement, in
  // this epoch.
  bool prepared = false;
  int64_t prepared_epoch = 0;
  // The result of that agreement, when it returned here. Kept until the next one returns.
  std::optional<AgreementVector> agreed;
  int64_t agreed_iteration = 0;  // the step that `agreed` is of; 0: none
  int64_t agreed_epoch = 0;      // in which it was reached
  // Iteration of the newest complete checkpoint of this job; -1: none. Member 0's counts.
  int64_t checkpoint = -1;
  bool operator==(const MemberOffer&) const = default;
};

struct RestoreDecision {
  enum class Source { kBeginning, kCheckpoint, kSnapshot, kLive };
  Source source = Source::kBeginning;  // the least of what any member uses
  int64_t iteration = 0;               // where all go on: committed steps
  int64_t epoch = 0;                   // HeldState::epoch of what all hold then
  std::string layout;                  // of what is used, when from memory
  // Members that are one step behind finish it with this vector before they offer anything. All
  // take it as their `agreed` (of step `iteration` in `epoch`), so that it is not lost with one.
  std::optional<AgreementVector> finish_with;
  // For Generations::Restored: the generation, not after `iteration`, to keep until a newer one
  // counts. Snapshots alone cover it: own ones and buddies' both, else either; then the newest.
  // kNoGeneration (-1): none.
  int64_t snapshots = -1;
  // The newest one that own snapshots and buddies' both cover: `snapshots` or older, or -1. The
  // next try is due from here on, so that the loss of a node is survived again soon.
  int64_t safe_snapshots = -1;
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

// INVALID_ARGUMENT: offers contradict each other (two results of one agreement, sizes of one layout
// that differ), which says that a member is not of this job.
absl::StatusOr<RestoreDecision> DecideRestore(const std::vector<MemberOffer>& offers);

// One line for the exchange between ranks, and back.
std::string EncodeOffer(const MemberOffer& offer);
absl::StatusOr<MemberOffer> DecodeOffer(absl::string_view text);

}  // namespace muster
