#include "recovery_model.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/recovery/buddies.h"

namespace muster {
namespace {

using Rank = RecoveryModel::Rank;
using State = RecoveryModel::State;
using Content = RecoveryModel::Content;
using Slots = RecoveryModel::Slots;
using Phase = RecoveryModel::Phase;
using Copy = RecoveryModel::Copy;

constexpr char kLayout[] = "model";
constexpr int kRanksOfNode = 2;

void Apply(Content& content, int8_t batch, int8_t epoch) {
  // A broken model may try to do more steps than there are; Check() has seen the first one.
  if (content.steps == RecoveryModel::kSteps) return;
  content.batch[content.steps] = batch;
  content.epoch[content.steps] = epoch;
  ++content.steps;
}

bool Alive(const Rank& rank) { return rank.phase != Phase::kDead; }
bool Training(const Rank& rank) { return rank.phase >= Phase::kComputing; }

template <class Predicate>
bool All(const State& state, Predicate predicate) {
  return std::all_of(state.ranks.begin(), state.ranks.end(), predicate);
}

bool SamePrefix(const Content& a, const Content& b) {
  for (int i = 0; i < std::min(a.steps, b.steps); ++i) {
    if (a.batch[i] != b.batch[i] || a.epoch[i] != b.epoch[i]) return false;
  }
  return true;
}

bool Holds(const Slots& slots, int64_t generation) {
  return std::any_of(slots.begin(), slots.end(), [&](const std::optional<Content>& slot) {
    return slot.has_value() && slot->steps == generation;
  });
}

Generations Reopen(const Slots& slots) {
  std::array<int64_t, kSnapshotSlots> complete;
  for (int i = 0; i < kSnapshotSlots; ++i) {
    complete[i] = slots[i].has_value() ? slots[i]->steps : kNoGeneration;
  }
  return Generations(complete);
}

// The process is gone; what lies in memory and what others saw is not.
void Kill(Rank& rank) {
  Rank dead;
  dead.phase = Phase::kDead;
  dead.restored = rank.restored;
  dead.begun_step = rank.begun_step;
  dead.entered_step = rank.entered_step;
  dead.vote = rank.vote;
  dead.own_memory = rank.own_memory;
  dead.kept_memory = rank.kept_memory;
  rank = dead;
}

}  // namespace

RecoveryModel::RecoveryModel(const ModelOptions& options)
    : options_(options), buddy_of_(BuddiesOf({"node0", "node0", "node1", "node1"})) {
  piece_of_ =
      options_.sharded ? std::vector<int64_t>{0, 1, 2, 3} : std::vector<int64_t>{0, 1, 0, 1};
  num_pieces_ = options_.sharded ? 4 : 2;
}

State RecoveryModel::Begin() const {
  State state;
  for (Rank& rank : state.ranks) {
    rank.live = Content();
    rank.restored = true;
    rank.begun_step = 1;
  }
  return state;
}

// ---- an epoch forms

RecoveryModel::Offered RecoveryModel::OfferOf(const Rank& rank, int number) const {
  Offered offered;
  MemberOffer& offer = offered.offer;
  offer.layout = kLayout;
  offer.needs = {piece_of_[number]};
  const bool tell = options_.mutation != Mutation::kEpochsNotTold;
  const auto add = [&](const Content& content, HeldState::Kind kind, int64_t piece, Source source) {
    offer.held.push_back({.kind = kind,
                          .iteration = content.steps,
                          .epoch = tell ? content.last_epoch() : 0,
                          .layout = kLayout,
                          .pieces = {piece},
                          .num_pieces = num_pieces_});
    offered.sources.push_back(source);
  };
  if (rank.live.has_value()) {
    add(*rank.live, HeldState::Kind::kLive, piece_of_[number], {Source::Place::kLive});
  }
  const int keeps_for =
      static_cast<int>(std::find(buddy_of_.begin(), buddy_of_.end(), number) - buddy_of_.begin());
  for (int i = 0; i < kSnapshotSlots; ++i) {
    if (rank.own_memory[i].has_value()) {
      add(*rank.own_memory[i], HeldState::Kind::kOwnSnapshot, piece_of_[number],
          {Source::Place::kOwn, i});
    }
    if (rank.kept_memory[i].has_value()) {
      add(*rank.kept_memory[i], HeldState::Kind::kBuddySnapshot, piece_of_[keeps_for],
          {Source::Place::kKept, i});
    }
  }
  offer.prepared = rank.prepared;
  offer.prepared_epoch = tell ? rank.prepared_epoch : 0;
  offer.agreed = rank.agreed;
  offer.agreed_iteration = rank.agreed_step;
  offer.agreed_epoch = tell ? rank.agreed_epoch : 0;
  return offered;
}

bool RecoveryModel::Exchange(const State& state, int, State& next) {
  if (state.plan >= 0 || !All(state, [](const Rank& r) { return r.phase == Phase::kForming; }))
    return false;
  next = state;
  auto plan = std::make_unique<Plan>();
  std::vector<MemberOffer> offers;
  for (int r = 0; r < kRanks; ++r) {
    Offered offered = OfferOf(state.ranks[r], r);
    plan->sources[r] = std::move(offered.sources);
    offers.push_back(std::move(offered.offer));
  }
  absl::StatusOr<RestoreDecision> decision = DecideRestore(offers);
  if (!decision.ok()) {
    broken_ = absl::StrCat("no decision: ", decision.status().message());
    return true;
  }
  plan->decision = *std::move(decision);
  // Two exchanges with the same outcome and the same places are one plan.
  absl::StrAppend(&plan->text, plan->decision.reason, " | epoch ", plan->decision.epoch,
                  ", snapshots ", plan->decision.snapshots);
  if (plan->decision.finish_with.has_value()) {
    absl::StrAppend(&plan->text, ", finish with ", plan->decision.finish_with->back());
  }
  for (int r = 0; r < kRanks; ++r) {
    const RestoreDecision::Member& member = plan->decision.members[r];
    const auto name = [&](int i) {
      const Source& source = plan->sources[r][i];
      return absl::StrCat(source.place == Source::Place::kLive  ? "L"
                          : source.place == Source::Place::kOwn ? "O"
                                                                : "K",
                          source.slot);
    };
    absl::StrAppend(&plan->text, "; ", r, member.finishes ? " finishes" : "", " keeps ",
                    member.keeps.has_value() ? name(*member.keeps) : "-", " gives");
    for (const int i : member.gives) absl::StrAppend(&plan->text, " ", i, name(i));
  }
  broken_ = CheckDecision(state, *plan);
  if (const int64_t kept = plan->decision.snapshots;
      kept > state.counted && !CheckCounted(state, kept).has_value()) {
    next.counted = static_cast<int8_t>(kept);
    next.lost_since_counted = 0;
  }
  const auto [number, is_new] =
      plan_numbers_.try_emplace(plan->text, static_cast<int>(plans_.size()));
  if (is_new) plans_.push_back(std::move(plan));
  next.plan = number->second;
  return true;
}

bool RecoveryModel::Decide(const State& state, int rank, State& next) {
  if (state.plan < 0 || state.ranks[rank].phase != Phase::kForming) return false;
  next = state;
  Rank& me = next.ranks[rank];
  const Plan& plan = PlanOf(state);
  const RestoreDecision::Member& member = plan.decision.members[rank];
  me.phase = Phase::kDecided;
  if (plan.decision.finish_with.has_value() && options_.mutation != Mutation::kResultNotKept) {
    me.agreed = plan.decision.finish_with;
    me.agreed_step = static_cast<int8_t>(plan.decision.iteration);
    me.agreed_epoch = static_cast<int8_t>(plan.decision.epoch);
  }
  const bool keeps_live =
      member.keeps.has_value() && plan.sources[rank][*member.keeps].place == Source::Place::kLive;
  if (!keeps_live) me.live.reset();
  if (member.finishes) return !options_.coarse_steps || LoadHere(rank, next);
  if (options_.mutation == Mutation::kCommitWithoutResult && me.prepared && me.live.has_value()) {
    Apply(*me.live, me.prepared_batch, me.prepared_epoch);
  }
  me.prepared = false;
  if (me.live.has_value() && options_.mutation != Mutation::kDataNotPutBack)
    me.next_batch = static_cast<int8_t>(me.live->steps + 1);
  if (options_.coarse_steps) LoadHere(rank, next);
  return true;
}

bool RecoveryModel::Load(const State& state, int rank, State& next) {
  if (state.ranks[rank].phase != Phase::kDecided) return false;
  const Plan& plan = PlanOf(state);
  if (plan.decision.source != RestoreDecision::Source::kBeginning &&
      !plan.decision.members[rank].keeps.has_value()) {
    return false;
  }
  next = state;
  return LoadHere(rank, next);
}

bool RecoveryModel::LoadHere(int rank, State& next) const {
  const Plan& plan = PlanOf(next);
  const RestoreDecision::Member& member = plan.decision.members[rank];
  const bool begins = plan.decision.source == RestoreDecision::Source::kBeginning;
  if (!begins && !member.keeps.has_value()) return false;
  Rank& me = next.ranks[rank];
  if (begins) {
    me.live = Content();
    me.next_batch = 1;
  } else if (const Source& kept = plan.sources[rank][*member.keeps];
             kept.place != Source::Place::kLive) {
    me.live = (kept.place == Source::Place::kOwn ? me.own_memory : me.kept_memory)[kept.slot];
    me.next_batch = static_cast<int8_t>(me.live->steps + 1);
  } else if (member.finishes) {
    Apply(*me.live, me.prepared_batch, me.prepared_epoch);
    me.prepared = false;
  }
  me.phase = Phase::kRestored;
  me.restored = true;
  return true;
}

std::optional<Content> RecoveryModel::GivenTo(const State& state, int rank) const {
  const Plan& plan = PlanOf(state);
  for (int giver = 0; giver < kRanks; ++giver) {
    const Rank& from = state.ranks[giver];
    if (from.phase < Phase::kDecided) continue;
    for (const int i : plan.decision.members[giver].gives) {
      const Source& source = plan.sources[giver][i];
      const bool live = source.place == Source::Place::kLive;
      const bool kept = source.place == Source::Place::kKept;
      const int owner =
          kept ? static_cast<int>(std::find(buddy_of_.begin(), buddy_of_.end(), giver) -
                                  buddy_of_.begin())
               : giver;
      if (piece_of_[owner] != piece_of_[rank]) continue;
      if (live && from.phase < Phase::kRestored) continue;
      return live ? from.live : (kept ? from.kept_memory : from.own_memory)[source.slot];
    }
  }
  return std::nullopt;
}

bool RecoveryModel::Fill(const State& state, int rank, State& next) {
  if (state.ranks[rank].phase != Phase::kDecided) return false;
  const RestoreDecision& decision = PlanOf(state).decision;
  if (decision.source == RestoreDecision::Source::kBeginning ||
      decision.members[rank].keeps.has_value()) {
    return false;
  }
  const std::optional<Content> given = GivenTo(state, rank);
  if (!given.has_value()) return false;
  next = state;
  Rank& me = next.ranks[rank];
  me.live = given;
  me.next_batch = static_cast<int8_t>(given->steps + 1);
  me.has_report = options_.mutation != Mutation::kReportNotGiven;
  me.phase = Phase::kRestored;
  me.restored = true;
  return true;
}

bool RecoveryModel::Start(const State& state, int rank, State& next) {
  if (state.ranks[rank].phase != Phase::kRestored) return false;
  if (!All(state, [](const Rank& r) { return r.restored; })) return false;
  next = state;
  Rank& me = next.ranks[rank];
  const RestoreDecision& decision = PlanOf(state).decision;
  me.own.Restored(decision.iteration, decision.snapshots, decision.safe_snapshots);
  me.kept.Restored(decision.iteration, decision.snapshots, decision.safe_snapshots);
  if (rank == kReporter && me.has_report && me.live->steps > 0) {
    next.ledger[me.live->steps - 1] = true;
  }
  me.begun_step = static_cast<int8_t>(me.live->steps + 1);
  me.phase = me.live->steps == kSteps ? Phase::kDone : Phase::kComputing;
  if (me.phase == Phase::kComputing) BeginSnapshot(me);
  return true;
}

// ---- a step

bool RecoveryModel::Prepare(const State& state, int rank, State& next) {
  const Rank& before = state.ranks[rank];
  if (before.phase != Phase::kComputing || before.unreported) return false;
  if (options_.quick_copies && before.copy != Copy::kNone) return false;
  if (!All(state, [&](const Rank& r) { return r.begun_step >= before.begun_step; })) return false;
  next = state;
  Rank& me = next.ranks[rank];
  me.prepared = true;
  me.prepared_epoch = state.epoch;
  me.prepared_batch = me.next_batch++;
  me.vote = ToVector({.snapshot_complete = me.own.vote()});
  me.entered_step = me.begun_step;
  me.phase = Phase::kPrepared;
  return true;
}

bool RecoveryModel::Return(const State& state, int rank, State& next) {
  const Rank& before = state.ranks[rank];
  if (before.phase != Phase::kPrepared) return false;
  if (!All(state, [&](const Rank& r) { return r.entered_step >= before.entered_step; }))
    return false;
  if (options_.coarse_steps && before.copy == Copy::kOwn) return false;
  next = state;
  Rank& me = next.ranks[rank];
  AgreementVector result = state.ranks[0].vote;
  for (const Rank& other : state.ranks) result = MaxOf(result, other.vote);
  me.agreed = result;
  me.agreed_step = me.entered_step;
  me.agreed_epoch = state.epoch;
  me.phase = Phase::kReturned;
  next.committed = std::max(next.committed, me.agreed_step);
  const int64_t counted_before = me.own.newest_counted();
  me.own.Counted(FromReduced(result).snapshots_counted);
  const int64_t counted = me.own.newest_counted();
  if (counted != counted_before) NoteCounted(counted, next);
  if (options_.coarse_steps) CommitHere(rank, next);
  return true;
}

void RecoveryModel::NoteCounted(int64_t counted, State& state) {
  broken_ = CheckCounted(state, counted);
  if (counted <= state.counted) return;
  state.counted = static_cast<int8_t>(counted);
  state.lost_since_counted = 0;
  for (int node = 0; node < kRanks / kRanksOfNode; ++node) {
    bool holds = false;
    for (int r = node * kRanksOfNode; r < (node + 1) * kRanksOfNode; ++r) {
      holds |= Holds(state.ranks[r].own_memory, counted);
    }
    if (!holds) ++state.lost_since_counted;
  }
}

bool RecoveryModel::Commit(const State& state, int rank, State& next) {
  const Rank& before = state.ranks[rank];
  if (before.phase != Phase::kReturned || before.copy == Copy::kOwn) return false;
  next = state;
  CommitHere(rank, next);
  return true;
}

void RecoveryModel::CommitHere(int rank, State& next) const {
  Rank& me = next.ranks[rank];
  Apply(*me.live, me.prepared_batch, me.prepared_epoch);
  me.prepared = false;
  me.has_report = true;
  me.unreported = rank == kReporter && !options_.coarse_steps;
  if (rank == kReporter && options_.coarse_steps) next.ledger[me.live->steps - 1] = true;
  ++me.begun_step;
  me.phase = me.live->steps == kSteps ? Phase::kDone : Phase::kComputing;
  if (me.phase == Phase::kComputing) BeginSnapshot(me);
}

bool RecoveryModel::Report(const State& state, int rank, State& next) {
  if (!state.ranks[rank].unreported) return false;
  next = state;
  next.ranks[rank].unreported = false;
  next.ledger[next.ranks[rank].live->steps - 1] = true;
  return true;
}

// ---- snapshots

void RecoveryModel::BeginSnapshot(Rank& rank) const {
  const int64_t iteration = rank.live->steps;
  if (!rank.own.Due(iteration, options_.interval)) return;
  std::optional<int> slot = rank.own.Begin(iteration);
  if (!slot.has_value()) return;
  if (options_.mutation == Mutation::kCountedIsOverwritten) {
    for (const auto& [held, where] : rank.own.complete()) {
      if (held == rank.own.newest_counted()) slot = where;
    }
  }
  rank.own_slot = static_cast<int8_t>(*slot);
  rank.own_memory[*slot].reset();
  rank.copy = Copy::kOwn;
}

bool RecoveryModel::CopyOwn(const State& state, int rank, State& next) {
  if (state.ranks[rank].copy != Copy::kOwn) return false;
  next = state;
  Rank& me = next.ranks[rank];
  me.own_memory[me.own_slot] = me.live;
  me.copy = Copy::kOwnDone;
  if (options_.mutation == Mutation::kCountedWithoutBuddy) me.own.Complete();
  return true;
}

// The keeper follows the sender: each copy comes with the newest generation that the sender knows
// to count, which ends the keeper's open try. Its own agreement may return later than the copy.
bool RecoveryModel::CopyBuddy(const State& state, int rank, State& next) {
  const Rank& before = state.ranks[rank];
  if (before.copy != Copy::kOwnDone || !Training(state.ranks[buddy_of_[rank]])) return false;
  next = state;
  Rank& me = next.ranks[rank];
  const int64_t generation = me.own_memory[me.own_slot]->steps;
  if (me.own.open_try() != generation) {  // given up meanwhile
    me.own.GiveUp();
    me.copy = Copy::kNone;
    return true;
  }
  Rank& keeper = next.ranks[buddy_of_[rank]];
  if (const std::optional<int64_t> open = keeper.kept.open_try(); open.has_value()) {
    keeper.kept.Counted(*open == me.own.newest_counted() ? *open : kGivenUp);
  }
  const std::optional<int> slot = keeper.kept.Begin(generation);
  if (!slot.has_value()) {
    me.own.GiveUp();
    me.copy = Copy::kNone;
    return true;
  }
  keeper.kept_memory[*slot].reset();
  me.buddy_slot = static_cast<int8_t>(*slot);
  me.copy = Copy::kBuddy;
  return true;
}

bool RecoveryModel::CopyEnd(const State& state, int rank, State& next) {
  if (state.ranks[rank].copy != Copy::kBuddy || !Training(state.ranks[buddy_of_[rank]]))
    return false;
  next = state;
  Rank& me = next.ranks[rank];
  Rank& keeper = next.ranks[buddy_of_[rank]];
  keeper.kept_memory[me.buddy_slot] = me.own_memory[me.own_slot];
  keeper.kept.Complete();
  if (options_.mutation != Mutation::kCountedWithoutBuddy) me.own.Complete();
  me.copy = Copy::kNone;
  return true;
}

// ---- failures, and what follows

bool RecoveryModel::CopyFail(const State& state, int rank, State& next) {
  const Rank& before = state.ranks[rank];
  if (before.copy == Copy::kNone || state.copy_failures >= options_.copy_failures) return false;
  next = state;
  ++next.copy_failures;
  Rank& me = next.ranks[rank];
  if (me.copy == Copy::kBuddy) next.ranks[buddy_of_[rank]].kept.GiveUp();
  me.own.GiveUp();
  me.copy = Copy::kNone;
  return true;
}

bool RecoveryModel::Die(const State& state, int rank, State& next) {
  if (!Alive(state.ranks[rank]) || state.deaths >= options_.deaths) return false;
  next = state;
  ++next.deaths;
  Kill(next.ranks[rank]);
  return true;
}

bool RecoveryModel::AllDie(const State& state, int, State& next) {
  if (state.mass_deaths >= options_.mass_deaths || !All(state, Alive)) return false;
  next = state;
  ++next.mass_deaths;
  for (Rank& rank : next.ranks) Kill(rank);
  return true;
}

bool RecoveryModel::LoseNode(const State& state, int node, State& next) {
  if (node >= kRanks / kRanksOfNode || state.node_losses >= options_.node_losses) return false;
  const auto first = state.ranks.begin() + node * kRanksOfNode;
  if (std::none_of(first, first + kRanksOfNode, Alive)) return false;
  next = state;
  ++next.node_losses;
  ++next.lost_since_counted;
  for (int r = node * kRanksOfNode; r < (node + 1) * kRanksOfNode; ++r) {
    Rank& rank = next.ranks[r];
    Kill(rank);
    rank.own_memory = {};
    rank.kept_memory = {};
  }
  return true;
}

bool RecoveryModel::Raise(const State& state, int, State& next) {
  if (All(state, Alive)) return false;
  next = state;
  ++next.epoch;
  next.plan = -1;
  // What a decision gave up is no promise any more.
  if (state.plan >= 0) {
    next.counted = static_cast<int8_t>(std::min<int64_t>(next.counted, [&] {
      const RestoreDecision& decision = PlanOf(state).decision;
      return decision.iteration < next.counted ? decision.snapshots : int64_t{next.counted};
    }()));
  }
  for (Rank& rank : next.ranks) {
    rank.own = Reopen(rank.own_memory);
    rank.kept = Reopen(rank.kept_memory);
    // Its agent has what it sent.
    if (rank.unreported) next.ledger[rank.live->steps - 1] = true;
    rank.copy = Copy::kNone;
    rank.own_slot = rank.buddy_slot = 0;
    rank.unreported = rank.restored = false;
    rank.begun_step = rank.entered_step = 0;
    rank.vote = {};
    rank.phase = Phase::kForming;
  }
  return true;
}

void RecoveryModel::ForEachStep(const State& state, const std::function<void(const Step&)>& visit) {
  struct Row {
    const char* action;
    Transition transition;
    int count;  // ranks, nodes; 1: all
    bool failure = false;
  };
  static constexpr Row kRows[] = {
      {"Exchange", &RecoveryModel::Exchange, 1},
      {"Decide", &RecoveryModel::Decide, kRanks},
      {"Load", &RecoveryModel::Load, kRanks},
      {"Fill", &RecoveryModel::Fill, kRanks},
      {"Start", &RecoveryModel::Start, kRanks},
      {"Prepare", &RecoveryModel::Prepare, kRanks},
      {"Return", &RecoveryModel::Return, kRanks},
      {"Commit", &RecoveryModel::Commit, kRanks},
      {"Report", &RecoveryModel::Report, kRanks},
      {"CopyOwn", &RecoveryModel::CopyOwn, kRanks},
      {"CopyBuddy", &RecoveryModel::CopyBuddy, kRanks},
      {"CopyEnd", &RecoveryModel::CopyEnd, kRanks},
      {"Raise", &RecoveryModel::Raise, 1},
      {"CopyFail", &RecoveryModel::CopyFail, kRanks, true},
      {"Die", &RecoveryModel::Die, kRanks, true},
      {"AllDie", &RecoveryModel::AllDie, 1, true},
      {"LoseNode", &RecoveryModel::LoseNode, kRanks / kRanksOfNode, true},
  };
  const bool settled = state.deaths >= options_.deaths &&
                       state.mass_deaths >= options_.mass_deaths &&
                       state.node_losses >= options_.node_losses &&
                       state.copy_failures >= options_.copy_failures && All(state, Alive);
  const bool one_order = options_.short_tails && settled;
  Step step;
  for (const Row& row : kRows) {
    for (int where = 0; where < row.count; ++where) {
      broken_.reset();
      if (!(this->*row.transition)(state, where, step.next)) continue;
      step.action = row.action;
      step.where = where;
      step.failure = row.failure;
      step.broken = broken_;
      visit(step);
      if (one_order) return;
    }
  }
}

// ---- what must hold

std::optional<std::string> RecoveryModel::CheckCounted(const State& state,
                                                       int64_t generation) const {
  for (int r = 0; r < kRanks; ++r) {
    const Rank& rank = state.ranks[r];
    const Rank& keeper = state.ranks[buddy_of_[r]];
    if (Alive(rank) && !Holds(rank.own_memory, generation))
      return absl::StrCat("generation ", generation, " counts, but rank ", r, " does not hold it");
    if (Alive(rank) && Alive(keeper) && !Holds(keeper.kept_memory, generation))
      return absl::StrCat("generation ", generation, " counts without rank ", r, "'s buddy's copy");
  }
  return std::nullopt;
}

std::optional<std::string> RecoveryModel::CheckDecision(const State& state,
                                                        const Plan& plan) const {
  const RestoreDecision& decision = plan.decision;
  if (state.lost_since_counted <= 1 && decision.iteration < state.counted) {
    return absl::StrCat("generation ", int{state.counted}, " counted, but the job goes on from ",
                        decision.iteration);
  }
  // What a survivor knows to be committed is not rolled back while every piece of it is there.
  int8_t known = 0;
  for (const Rank& rank : state.ranks) {
    if (rank.live.has_value()) known = std::max(known, rank.live->steps);
    if (rank.prepared && rank.agreed.has_value() && rank.agreed_epoch == rank.prepared_epoch &&
        rank.live->steps + 1 == rank.agreed_step) {
      known = std::max(known, rank.agreed_step);
    }
  }
  std::vector<bool> there(num_pieces_);
  for (int8_t epoch = 1; epoch <= state.epoch && known > 0; ++epoch) {
    std::vector<bool> of_epoch(num_pieces_);
    bool committed = false;
    for (int r = 0; r < kRanks; ++r) {
      const Rank& rank = state.ranks[r];
      if (!rank.live.has_value()) continue;
      const bool has = rank.live->steps == known && rank.live->last_epoch() == epoch;
      const bool could =
          rank.prepared && rank.live->steps + 1 == known && rank.prepared_epoch == epoch;
      committed |= has || (could && rank.agreed_step == known && rank.agreed_epoch == epoch);
      if (has || could) of_epoch[piece_of_[r]] = true;
    }
    if (committed && std::count(of_epoch.begin(), of_epoch.end(), true) == num_pieces_)
      there = of_epoch;
  }
  if (std::count(there.begin(), there.end(), true) == num_pieces_ && decision.iteration < known) {
    return absl::StrCat("step ", int{known},
                        " is committed and all there, but the job goes on from ",
                        decision.iteration);
  }
  // With a process and a node lost, the state that was gone on from may be what only one node
  // holds, and the next one is a step later.
  const int bound = options_.interval + (state.deaths > 0 && state.node_losses > 0 ? 1 : 0);
  if (options_.quick_copies && options_.interval > 0 && state.node_losses <= 1 &&
      options_.copy_failures == 0 && decision.iteration + bound < state.committed) {
    return absl::StrCat("step ", int{state.committed}, " was committed, but the job goes on from ",
                        decision.iteration);
  }
  // All that is kept or given is one state.
  std::optional<Content> first;
  for (int r = 0; r < kRanks; ++r) {
    const Rank& rank = state.ranks[r];
    std::vector<int> used = decision.members[r].gives;
    if (decision.members[r].keeps.has_value()) used.push_back(*decision.members[r].keeps);
    for (const int i : used) {
      const Source& source = plan.sources[r][i];
      std::optional<Content> content = source.place == Source::Place::kLive ? rank.live
                                       : source.place == Source::Place::kOwn
                                           ? rank.own_memory[source.slot]
                                           : rank.kept_memory[source.slot];
      if (source.place == Source::Place::kLive && decision.members[r].finishes)
        Apply(*content, rank.prepared_batch, rank.prepared_epoch);
      if (content->steps != decision.iteration)
        return absl::StrCat("rank ", r, " goes on elsewhere");
      if (first.has_value() && !(*first == *content))
        return absl::StrCat("rank ", r, "'s state is of another run than the others'");
      first = content;
    }
  }
  return std::nullopt;
}

std::optional<std::string> RecoveryModel::Check(const State& state) const {
  const auto check = [](const std::optional<Content>& content) {
    if (!content.has_value()) return true;
    for (int i = 0; i < content->steps; ++i) {
      if (content->batch[i] != i + 1 || content->epoch[i] < 1) return false;
    }
    return true;
  };
  for (int r = 0; r < kRanks; ++r) {
    const Rank& rank = state.ranks[r];
    bool good = check(rank.live);
    for (int i = 0; i < kSnapshotSlots; ++i) {
      good &= check(rank.own_memory[i]) && check(rank.kept_memory[i]);
    }
    if (!good) return absl::StrCat("rank ", r, " lost or repeated samples");
    if (!Training(rank)) continue;
    for (const Rank& other : state.ranks) {
      if (!Training(other)) continue;
      if (!SamePrefix(*rank.live, *other.live))
        return absl::StrCat("rank ", r, " trained another run than the others");
      if (rank.live->steps > other.live->steps + 1)
        return absl::StrCat("rank ", r, " is more than a step ahead");
    }
  }
  return std::nullopt;
}

bool RecoveryModel::IsEnd(const State& state) {
  return All(state, [](const Rank& r) { return r.phase == Phase::kDone && !r.unreported; }) &&
         std::count(state.ledger.begin(), state.ledger.end(), true) == kSteps;
}

int64_t RecoveryModel::Progress(const State& state) {
  int64_t progress = int64_t{state.epoch} * 1000000 + (state.plan >= 0 ? 1 : 0);
  for (const Rank& rank : state.ranks) {
    const int copy = rank.copy == Copy::kNone ? 4 : static_cast<int>(rank.copy);
    progress += static_cast<int>(rank.phase) * 10 + copy + (rank.unreported ? 0 : 1);
    if (Training(rank)) progress += rank.live->steps * 100;
  }
  return progress;
}

namespace {

// All of a state in few words: small numbers are packed, so that hashing is cheap.
class Digest {
 public:
  template <class... T>
  void Add(const T&... values) {
    (AddOne(values), ...);
  }
  uint64_t value() const { return Mix(hash_ ^ word_); }

 private:
  static uint64_t Mix(uint64_t x) {  // splitmix64's finalizer
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void AddOne(T value) {
    word_ = word_ << 8 | static_cast<uint8_t>(value);
    if (++bytes_ % 8 != 0) return;
    hash_ = Mix(hash_ + word_ + bytes_ * 0x9e3779b97f4a7c15u);
    word_ = 0;
  }
  void AddOne(const Content& content) { Add(content.steps, content.batch, content.epoch); }
  void AddOne(const Generations& generations) {
    Add(generations.slots(), generations.writing(), generations.open_try(),
        generations.newest_counted(), generations.vote());
  }
  template <class T, size_t n>
  void AddOne(const std::array<T, n>& values) {
    for (const T& value : values) AddOne(value);
  }
  template <class T>
  void AddOne(const std::optional<T>& value) {
    AddOne(value.has_value());
    if (value.has_value()) AddOne(*value);
  }

  uint64_t hash_ = 0, word_ = 0, bytes_ = 0;
};

}  // namespace

uint64_t RecoveryModel::Hash(const State& state) {
  Digest digest;
  MUSTER_CHECK(state.plan < 1 << 15);
  digest.Add(state.epoch, state.plan, state.plan >> 8, state.ledger, state.deaths,
             state.mass_deaths, state.node_losses, state.copy_failures, state.counted,
             state.lost_since_counted, state.committed);
  for (const Rank& r : state.ranks) {
    digest.Add(r.phase, r.live, r.next_batch, r.prepared, r.prepared_epoch, r.prepared_batch,
               r.agreed, r.agreed_step, r.agreed_epoch, r.has_report, r.unreported, r.own, r.kept,
               r.copy, r.own_slot, r.buddy_slot, r.restored, r.begun_step, r.entered_step, r.vote,
               r.own_memory, r.kept_memory);
  }
  return digest.value();
}

std::string RecoveryModel::ToString(const State& state) const {
  static constexpr const char* kPhases[] = {"dead",      "forming",  "decided",  "restored",
                                            "computing", "prepared", "returned", "done"};
  const auto text = [](const std::optional<Content>& content) {
    std::string result;
    if (!content.has_value()) return std::string("-");
    for (int i = 0; i < content->steps; ++i) {
      absl::StrAppend(&result, i > 0 ? " " : "", int{content->batch[i]}, "@",
                      int{content->epoch[i]});
    }
    return absl::StrCat("[", result, "]");
  };
  std::string result = absl::StrCat("epoch ", int{state.epoch});
  if (state.plan >= 0) absl::StrAppend(&result, ", ", PlanOf(state).text);
  for (int r = 0; r < kRanks; ++r) {
    const Rank& rank = state.ranks[r];
    absl::StrAppend(&result, "\n    ", r, " ", kPhases[static_cast<int>(rank.phase)], " live ",
                    text(rank.live));
    if (rank.prepared)
      absl::StrAppend(&result, " prepared ", int{rank.prepared_batch}, "@",
                      int{rank.prepared_epoch});
    if (rank.agreed.has_value())
      absl::StrAppend(&result, " agreed ", int{rank.agreed_step}, "@", int{rank.agreed_epoch});
    absl::StrAppend(&result, " copy ", static_cast<int>(rank.copy), " counted ",
                    rank.own.newest_counted(), " own");
    for (const auto& slot : rank.own_memory) absl::StrAppend(&result, " ", text(slot));
    absl::StrAppend(&result, " kept");
    for (const auto& slot : rank.kept_memory) absl::StrAppend(&result, " ", text(slot));
  }
  return result;
}

}  // namespace muster
