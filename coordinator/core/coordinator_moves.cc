// Coordinator's part that changes the places of jobs that train: workers that are drained, growth
// of elastic jobs, spares.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/recovery/elastic_size.h"
#include "coordinator/core/coordinator.h"

namespace muster {

void Coordinator::ApplyChange(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  const PlannedChange change = *job.change();
  EpochPlan plan{.data_parallel_size = job.data_parallel_size(),
                 .examine_json = change.examine_json,
                 .reason = change.reason,
                 .change = change.kind == PlannedChange::Kind::kMove ? "move" : "reform"};
  RecoveryInput input{.spec = &job.spec()};
  std::vector<std::string> workers;
  std::set<std::string> used, helpers;
  if (change.kind == PlannedChange::Kind::kGrow) {
    for (const RankSlot& slot : job.ranks()) {
      input.ranks.push_back({.worker = {slot.worker, slot.node, 0}});
    }
    for (const ExtraSlot& extra : job.extras()) {
      if (extra.role != ExtraSlot::Role::kSpare) continue;
      input.spares.push_back({extra.slot.worker, extra.slot.node, 0});
    }
    const RecoveryPlan grown = PlanRecovery(input);
    plan.data_parallel_size = grown.data_parallel_size;
    plan.reason = absl::StrCat(change.reason, ": ", grown.reason);
    plan.change = grown.change;
    for (const RecoveryPlan::Rank& rank : grown.ranks) workers.push_back(rank.worker);
  } else {
    for (const RankSlot& slot : job.ranks()) workers.push_back(slot.worker);
    for (const RankMove& move : change.moves) {
      const bool there = membership_.FindWorker(move.to) != nullptr &&
                         membership_.FindWorker(move.to)->assignment.has_value() &&
                         membership_.FindWorker(move.to)->assignment->job_id == job.job_id();
      if (there) workers[move.rank] = move.to;  // else it was lost, and the rank stays
    }
    const std::set<std::string> keep(workers.begin(), workers.end());
    for (const RankMove& move : change.moves) {
      if (!keep.contains(move.from)) helpers.insert(move.from);
    }
  }
  plan.spec_json = SpecFor(job, plan.data_parallel_size);
  for (const std::string& worker : workers) {
    used.insert(worker);
    plan.ranks.push_back(SlotOn(worker, job));
  }
  int rank = static_cast<int>(workers.size());
  for (const std::string& worker : helpers) {
    used.insert(worker);
    plan.extras.push_back(
        {.role = ExtraSlot::Role::kHelper, .rank = rank++, .slot = SlotOn(worker, job)});
  }
  for (const ExtraSlot& extra : job.extras()) {
    if (extra.role != ExtraSlot::Role::kSpare || used.contains(extra.slot.worker)) continue;
    plan.extras.push_back({.slot = SlotOn(extra.slot.worker, job)});
  }
  RaiseEpoch(job, std::move(plan), now, actions);
}

absl::Status Coordinator::MoveRanks(JobMachine& job, const std::vector<int>& ranks,
                                    const std::string& reason, absl::Time now,
                                    std::vector<Action>* actions) {
  std::vector<std::string> spares = GoodSpares(job), to_take;
  for (const RecoveryWorker& worker : IdleWorkers(job)) {
    if (spares.size() >= ranks.size()) break;
    spares.push_back(worker.name);
    to_take.push_back(worker.name);
  }
  if (spares.size() < ranks.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        reason, ": ", ranks.size(), ranks.size() == 1 ? " rank" : " ranks", " of ", job.job_id(),
        " would move, and ", spares.size(), " spare or idle workers are there: they stay for now"));
  }
  PlannedChange change{.reason = reason};
  for (size_t i = 0; i < ranks.size(); ++i) {
    change.moves.push_back({ranks[i], job.ranks()[ranks[i]].worker, spares[i]});
    change.needs_spares.push_back(spares[i]);
  }
  RETURN_IF_ERROR(job.RequestChange(std::move(change), now));
  TakeSpares(job, to_take, now, actions);
  decided_ = true;
  changed_.insert(job.job_id());
  Touch(job);
  return absl::OkStatus();
}

void Coordinator::TakeSpares(JobMachine& job, const std::vector<std::string>& workers,
                             absl::Time now, std::vector<Action>* actions) {
  std::vector<RankSlot> slots;
  for (const std::string& worker : workers) {
    membership_.Assign({worker, job.job_id(), job.epoch(), -1});
    slots.push_back(SlotOn(worker, job));
  }
  JobEffects effects;
  job.AddSpares(std::move(slots), now, &effects);
  Apply(job, effects, actions);
}

void Coordinator::Rearrange(absl::Time now, std::vector<Action>* actions) {
  for (const int64_t sequence : live_) {
    JobMachine& job = *jobs_.at(sequence);
    const bool trains = IsActive(job.state()) && !job.aborted() && !job.cancelling() &&
                        job.state() != JobState::kForming && job.state() != JobState::kRecovering &&
                        !job.some_are_done();
    if (!trains || job.limits_stand_still()) continue;
    const auto supply = membership_.supply().find(job.kind());
    if (supply == membership_.supply().end()) continue;
    const bool any_held = supply->second.num_held() > 0 || !job.drain_waits().empty();
    if (!job.change().has_value() && any_held) MoveDrained(job, now, actions);
    if (!job.change().has_value()) Grow(job, now, actions);
    if (!job.change().has_value()) KeepSpares(job, now, actions);
  }
}

std::vector<std::string> Coordinator::GoodSpares(const JobMachine& job) const {
  std::vector<std::string> good;
  for (const ExtraSlot& extra : job.extras()) {
    const Worker* worker = membership_.FindWorker(extra.slot.worker);
    if (extra.role != ExtraSlot::Role::kSpare || worker == nullptr || worker->hold.any()) continue;
    if (extra.slot.phase != "failed") good.push_back(extra.slot.worker);
  }
  return good;
}

void Coordinator::MoveDrained(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  const auto must_move = [&](const std::string& name) {
    const Worker* worker = membership_.FindWorker(name);
    return worker != nullptr && worker->hold.must_move();
  };
  std::vector<std::string> spares;  // that leave
  for (const ExtraSlot& extra : job.extras()) {
    if (extra.role == ExtraSlot::Role::kSpare && must_move(extra.slot.worker)) {
      spares.push_back(extra.slot.worker);
    }
  }
  JobEffects effects;
  for (const std::string& spare : spares) {
    job.ReleaseSpare(spare, absl::StrCat("worker ", spare, " is held back"), now, &effects);
  }
  Apply(job, effects, actions);
  std::vector<int> ranks;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    if (must_move(job.ranks()[rank].worker)) ranks.push_back(rank);
  }
  // Those for which there is room; the others when there is more.
  const size_t room = GoodSpares(job).size() + membership_.supply().at(job.kind()).num_idle;
  const size_t moving = std::min(ranks.size(), room);
  std::string waits;
  if (moving < ranks.size()) {
    const std::vector<int> staying(ranks.begin() + static_cast<int64_t>(moving), ranks.end());
    std::vector<absl::string_view> workers;
    for (const int rank : staying) workers.push_back(job.ranks()[rank].worker);
    const std::string named = CompressNames(workers);
    waits = absl::StrCat("drain waits: no spare and no idle worker for rank",
                         staying.size() > 1 ? "s " : " ", CompressRanks(staying), " (worker",
                         staying.size() > 1 ? "s " : " ", named, "); add a worker, or `muster ",
                         "uncordon ", staying.size() > 1 ? "WORKER" : named, "` lets it stay");
  }
  const int64_t version = job.version();
  job.NoteDrainWaits(waits, now);
  if (job.version() != version) changed_.insert(job.job_id());
  Touch(job);
  if (moving == 0) return;
  ranks.resize(moving);
  const std::string reason = absl::StrCat("worker ", job.ranks()[ranks[0]].worker,
                                          ranks.size() > 1 ? " and others are" : " is", " drained");
  // Asked again at the next tick when it cannot be now.
  (void)MoveRanks(job, ranks, reason, now, actions);
}

void Coordinator::Grow(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  const JobSpec& spec = job.spec();
  const int64_t of_replica = RanksOfReplica(spec);
  const int64_t wanted = spec.resources.world_size / of_replica;
  if (!spec.recovery.elastic || job.data_parallel_size() >= wanted) return;
  if (now - job.grew_at() < options_.jobs.growth_interval) return;
  const int num_idle = membership_.supply().at(job.kind()).num_idle;
  const int64_t possible =
      std::min(wanted, (job.world_size() + job.num_spares() + num_idle) / of_replica);
  if (possible <= job.data_parallel_size()) return;
  const int64_t dp = possible == wanted ? wanted : LargestDataParallelSize(spec, possible);
  if (dp <= job.data_parallel_size()) return;
  PlannedChange change{.kind = PlannedChange::Kind::kGrow,
                       .reason = absl::StrCat("workers are back: data parallel size ",
                                              job.data_parallel_size(), " -> ", dp),
                       .data_parallel_size = dp};
  int64_t needed = dp * of_replica - job.world_size() - job.num_spares();
  std::vector<std::string> to_take;
  for (const RecoveryWorker& worker : IdleWorkers(job)) {
    if (needed-- <= 0) break;
    to_take.push_back(worker.name);
  }
  for (const ExtraSlot& extra : job.extras()) {
    if (extra.role == ExtraSlot::Role::kSpare) change.needs_spares.push_back(extra.slot.worker);
  }
  change.needs_spares.insert(change.needs_spares.end(), to_take.begin(), to_take.end());
  if (!job.RequestChange(std::move(change), now).ok()) return;
  TakeSpares(job, to_take, now, actions);
  decided_ = true;
  changed_.insert(job.job_id());
  Touch(job);
}

void Coordinator::KeepSpares(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  const int64_t lacking = job.spec().resources.spares - job.num_spares();
  if (lacking <= 0 || membership_.supply().at(job.kind()).num_idle == 0) return;
  std::vector<std::string> to_take;
  for (const RecoveryWorker& worker : IdleWorkers(job)) {
    if (static_cast<int64_t>(to_take.size()) == lacking) break;
    to_take.push_back(worker.name);
  }
  TakeSpares(job, to_take, now, actions);
  decided_ = true;
  changed_.insert(job.job_id());
}

}  // namespace muster
