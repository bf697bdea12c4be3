// The specification of commit, agreement, snapshot generations and recovery, small enough to be
// looked at from all sides: four ranks train three steps, processes and nodes die at every point,
// and recovery_explorer.h visits every state that can be reached. What decides here is the code
// that trainers run (DecideRestore, Generations, AgreementVector, BuddiesOf); the model is what
// surrounds it. If trainers and this file disagree, one of them is wrong.
//
// The job. Ranks 0, 1 lie on node 0, ranks 2, 3 on node 1. Replicated: two replicas of data
// parallelism over two pieces of the state, {0, 1, 0, 1}; a tied weight is in both pieces, so all
// four must hold the same history of it. Sharded: a piece a rank. A piece is described by what went
// into it: for each step the batch and the epoch whose gradients were applied. Gradients of two
// epochs need not have the same bits.
//
// A rank's process, in an epoch (Phase):
//
//             Exchange        Decide      Load, Fill       Start
//   kForming ----------> (1) -------> kDecided ----> kRestored ----> kComputing
//                                                                 Prepare |  ^
//                                                                         v  | Commit
//                                        kDead                  kPrepared ---> kReturned
//                                                                        Return   | Commit
//   of the last step                                                              v
//                                                                               kDone
//   Exchange (1)  all are in the epoch: every rank's offer lies on the table, and so does the
//            decision, the same for all. It needs all of them; what follows is each rank's own.
//   Decide   it takes the agreement's result over if there is one, drops its prepared step if it
//            does not finish it (its data goes back to where the step began), drops live state
//            that it does not keep
//   Load     it finishes the step, or reads its own memory, or begins with fresh parameters
//   Fill     it is given the state by another rank that has it
//   Start    all have their state (a barrier): generations are told, the last step is reported
//   again,
//            a snapshot is begun where one is due
//   Prepare  all are in this step: gradients are final and a vote is entered into the agreement
//   Return   all have entered: the result is here; it need not be anywhere else
//   Commit   the optimizer step. Waits for the copy of the state that it is about to change; begins
//            the next copy where one is due
//   Report   the last rank's report reaches the coordinator's ledger; before it prepares the next
//
//   A snapshot's copy goes CopyOwn, CopyBuddy, CopyEnd beside all that. A slot is torn while it is
//   written. CopyFail gives it up.
//
// What fails, as often as the budgets allow, between any two of these: a process (its memory stays
// with its agent), all processes, a node (processes and memory), a copy. After a death the others
// go on as far as they come; Raise ends the epoch: everybody forms anew, the dead as new processes.
//
// What holds in every state: Check() in recovery_model.cc. Every state but the end has a
// transition that is no failure, and each of these makes progress (Progress()): so that from
// everywhere the job comes to its end.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/control/agreement.h"
#include "common/recovery/generations.h"
#include "common/recovery/restore_plan.h"

namespace muster {

// Faults in the logic, each of which the explorer must find.
enum class Mutation {
  kNone,
  kCommitWithoutResult,   // a survivor applies its prepared step, though nobody knows the result
  kResultNotKept,         // who finishes a step does not keep the agreement's result
  kDataNotPutBack,        // a dropped step's batch counts as read
  kCountedIsOverwritten,  // the newest counted generation's slot is written next
  kCountedWithoutBuddy,   // a generation counts when the own copies are complete
  kEpochsNotTold,         // offers do not say of which epoch a state is
  kReportNotGiven,        // who is filled does not get the last step's report
};

struct ModelOptions {
  bool sharded = false;
  int interval = 1;  // steps between snapshots; 0: none
  int deaths = 1, mass_deaths = 0, node_losses = 0, copy_failures = 0;
  // All of a snapshot's copies end before the next step is prepared (true) or any time (false).
  bool quick_copies = false;
  // For fewer states: Return with Commit and Report, Decide with Load are one transition each.
  bool coarse_steps = false;
  // For fewer states: once no failure is left to come and all live, one order is followed to the
  // end. (All orders without a failure are those before the first one.)
  bool short_tails = false;
  Mutation mutation = Mutation::kNone;
};

class RecoveryModel {
 public:
  static constexpr int kRanks = 4, kSteps = 3, kReporter = kRanks - 1;

  // What went into a piece, or a copy of it.
  struct Content {
    int8_t steps = 0;
    std::array<int8_t, kSteps> batch{}, epoch{};
    bool operator==(const Content&) const = default;
    int8_t last_epoch() const { return steps == 0 ? 0 : epoch[steps - 1]; }
  };
  using Slots = std::array<std::optional<Content>, kSnapshotSlots>;  // none: empty or torn

  enum class Phase : int8_t {
    kDead,
    kForming,
    kDecided,
    kRestored,
    kComputing,
    kPrepared,
    kReturned,
    kDone
  };
  enum class Copy : int8_t { kNone, kOwn, kOwnDone, kBuddy };

  struct Rank {
    // The process.
    Phase phase = Phase::kComputing;
    std::optional<Content> live;
    int8_t next_batch = 1;  // that its data iterator gives
    bool prepared = false;
    int8_t prepared_epoch = 0, prepared_batch = 0;
    std::optional<AgreementVector> agreed;
    int8_t agreed_step = 0, agreed_epoch = 0;
    // The last step's numbers for the ledger: they are a part of the state, live or in a snapshot.
    bool has_report = true, unreported = false;
    Generations own, kept;  // kept: of the rank whose buddy this one is
    Copy copy = Copy::kNone;
    int8_t own_slot = 0, buddy_slot = 0;  // that the copy goes to
    // What others saw of it in this epoch; outlives the process.
    bool restored = false;
    int8_t begun_step = 0, entered_step = 0;
    AgreementVector vote{};
    // Memory that outlives the process.
    Slots own_memory, kept_memory;
  };

  struct State {
    std::array<Rank, kRanks> ranks;
    int8_t epoch = 1;
    int plan = -1;  // index of what the epoch's exchange decided; -1: not exchanged yet
    std::array<bool, kSteps> ledger{};
    int8_t deaths = 0, mass_deaths = 0, node_losses = 0, copy_failures = 0;
    // For the invariants only: the newest generation that counted on any rank, nodes lost since;
    // the newest step whose agreement returned anywhere.
    int8_t counted = -1, lost_since_counted = 0, committed = 0;
  };

  struct Step {
    const char* action = "";
    int where = -1;  // rank or node; -1: all
    bool failure = false;
    State next;
    std::optional<std::string> broken;  // a rule that this very step breaks
  };

  explicit RecoveryModel(const ModelOptions& options);

  State Begin() const;
  void ForEachStep(const State& state, const std::function<void(const Step&)>& visit);
  // The invariants: what is wrong in this state.
  std::optional<std::string> Check(const State& state) const;
  static bool IsEnd(const State& state);
  // Grows with every transition that is no failure.
  static int64_t Progress(const State& state);
  static uint64_t Hash(const State& state);
  std::string ToString(const State& state) const;

 private:
  // What an epoch's exchange decided, and where the states that its offers named lie.
  struct Source {
    enum class Place { kLive, kOwn, kKept } place = Place::kLive;
    int slot = 0;
  };
  struct Plan {
    RestoreDecision decision;
    std::array<std::vector<Source>, kRanks> sources;  // by index in `held`
    std::string text;
  };
  struct Offered {
    MemberOffer offer;
    std::vector<Source> sources;
  };
  using Transition = bool (RecoveryModel::*)(const State&, int, State&);

  // The transitions of the header's text: false where one cannot happen.
  bool Exchange(const State& state, int, State& next);
  bool Decide(const State& state, int rank, State& next);
  bool Load(const State& state, int rank, State& next);
  bool Fill(const State& state, int rank, State& next);
  bool Start(const State& state, int rank, State& next);
  bool Prepare(const State& state, int rank, State& next);
  bool Return(const State& state, int rank, State& next);
  bool Commit(const State& state, int rank, State& next);
  bool Report(const State& state, int rank, State& next);
  bool CopyOwn(const State& state, int rank, State& next);
  bool CopyBuddy(const State& state, int rank, State& next);
  bool CopyEnd(const State& state, int rank, State& next);
  bool Raise(const State& state, int, State& next);
  bool CopyFail(const State& state, int rank, State& next);
  bool Die(const State& state, int rank, State& next);
  bool AllDie(const State& state, int, State& next);
  bool LoseNode(const State& state, int node, State& next);

  Offered OfferOf(const Rank& rank, int number) const;
  const Plan& PlanOf(const State& state) const { return *plans_[state.plan]; }
  // Effects that are transitions of their own, or parts of others with coarse_steps.
  bool LoadHere(int rank, State& next) const;
  void CommitHere(int rank, State& next) const;
  void BeginSnapshot(Rank& rank) const;
  void NoteCounted(int64_t counted, State& state);
  std::optional<Content> GivenTo(const State& state, int rank) const;
  std::optional<std::string> CheckDecision(const State& state, const Plan& plan) const;
  std::optional<std::string> CheckCounted(const State& state, int64_t generation) const;

  const ModelOptions options_;
  std::vector<int64_t> piece_of_;
  int64_t num_pieces_ = 0;
  std::vector<int> buddy_of_;
  std::vector<std::unique_ptr<const Plan>> plans_;  // interned: a state holds its plan's number
  std::map<std::string, int> plan_numbers_;
  std::optional<std::string> broken_;  // by the transition under way
};

}  // namespace muster
