// Coordinator's part that takes jobs to their next epoch: it knows the workers that a plan needs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/recovery/buddies.h"
#include "common/recovery/elastic_size.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/recovery_plan.h"

namespace muster {

void Coordinator::Reform(absl::Time now, std::vector<Action>* actions) {
  for (auto it = reforming_.begin(); it != reforming_.end();) {
    const int64_t sequence = *it++;
    JobMachine& job = *jobs_.at(sequence);
    if (job.wants_plan()) {
      const std::pair seen(membership_.generation(), job.version());
      const auto last = planned_at_.find(sequence);
      if (last != planned_at_.end() && last->second == seen) continue;
      PlanFor(job, now, actions);
      planned_at_[sequence] = {membership_.generation(), job.version()};
    } else if (job.change_is_due()) {
      Arbitrate(job, now, actions);
      if (job.change_is_due()) ApplyChange(job, now, actions);
    }
    if (job.wants_plan() || job.change_is_due()) continue;
    reforming_.erase(sequence);
    planned_at_.erase(sequence);
  }
}

std::vector<RecoveryWorker> Coordinator::IdleWorkers(const JobMachine& job) const {
  std::vector<RecoveryWorker> idle;
  const auto supply = membership_.supply().find(job.kind());
  if (supply == membership_.supply().end() || supply->second.num_idle == 0) return idle;
  for (const auto& [name, worker] : membership_.workers()) {
    if (worker.info.kind != job.kind() || !membership_.IsIdle(worker)) continue;
    idle.push_back({name, membership_.FindAgent(worker.incarnation)->node, worker.info.index});
  }
  return idle;
}

void Coordinator::PlanFor(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  RecoveryInput input{.spec = &job.spec(), .idle = IdleWorkers(job)};
  const std::vector<std::string>& hit = job.incident().hit_workers;
  // Whether a new process can be started there.
  const auto usable = [&](const RankSlot& slot) {
    const Worker* worker = membership_.FindWorker(slot.worker);
    return worker != nullptr && worker->incarnation == slot.incarnation && !worker->hold.any() &&
           membership_.FindAgent(slot.incarnation)->state == AgentState::kAlive;
  };
  for (const RankSlot& slot : job.ranks()) {
    RecoveryRank& rank = input.ranks.emplace_back();
    rank.worker = {slot.worker, slot.node, 0};
    if (const Worker* worker = membership_.FindWorker(slot.worker)) {
      rank.worker.device_index = worker->info.index;
    }
    rank.suspect = std::count(hit.begin(), hit.end(), slot.worker) > 1;
    if (!slot.held || slot.lost) {
      rank.state = RecoveryRank::State::kGone;
    } else if (slot.trainer == RankSlot::Trainer::kLaunched) {
      rank.state = !slot.condemned      ? RecoveryRank::State::kAlive
                   : job.awaits_exits() ? RecoveryRank::State::kEnding
                                        : RecoveryRank::State::kGone;
    } else {
      rank.state = usable(slot) ? RecoveryRank::State::kVacant : RecoveryRank::State::kGone;
    }
  }
  std::vector<std::string> away;  // spares that cannot be heard now, and are not given up
  for (const ExtraSlot& extra : job.extras()) {
    const bool warm = extra.slot.trainer == RankSlot::Trainer::kLaunched;
    // Helpers leave, unless nobody has come in their place yet.
    if (extra.role != ExtraSlot::Role::kSpare || (warm && extra.slot.phase == "failed")) continue;
    if (usable(extra.slot)) {
      input.spares.push_back({extra.slot.worker, extra.slot.node, 0});
      continue;
    }
    const Worker* worker = membership_.FindWorker(extra.slot.worker);
    const bool quiet = worker != nullptr && worker->incarnation == extra.slot.incarnation &&
                       !worker->hold.any() &&
                       membership_.FindAgent(worker->incarnation)->state == AgentState::kSuspect;
    if (quiet) away.push_back(extra.slot.worker);
  }
  const RecoveryPlan plan = PlanRecovery(input);
  const bool makes_do = plan.kind == RecoveryPlan::Kind::kWaitForWorkers ||
                        plan.data_parallel_size < job.data_parallel_size();
  if (makes_do && plan.kind != RecoveryPlan::Kind::kAwaitExits && now < hold_plans_until_) return;
  switch (plan.kind) {
    case RecoveryPlan::Kind::kAwaitExits:
      return;
    case RecoveryPlan::Kind::kWaitForWorkers:
      job.WaitForWorkers(plan.reason, now);
      Touch(job);
      changed_.insert(job.job_id());
      return;
    case RecoveryPlan::Kind::kGo:
      break;
  }
  EpochPlan epoch{.data_parallel_size = plan.data_parallel_size,
                  .spec_json = SpecFor(job, plan.data_parallel_size),
                  .reason = plan.reason,
                  .change = plan.change};
  for (const RecoveryPlan::Rank& rank : plan.ranks) {
    epoch.ranks.push_back(SlotOn(rank.worker, job));
    epoch.sources.push_back(rank.source);
  }
  away.insert(away.end(), plan.spares.begin(), plan.spares.end());
  for (const std::string& worker : away) epoch.extras.push_back({.slot = SlotOn(worker, job)});
  RaiseEpoch(job, std::move(epoch), now, actions);
}

std::string Coordinator::SpecFor(const JobMachine& job, int64_t data_parallel_size) const {
  const JobSpec& spec = job.spec();
  std::string json;
  if (data_parallel_size * RanksOfReplica(spec) != spec.resources.world_size) {
    const auto sized = SpecWithReplicas(job.identity().spec_json, data_parallel_size);
    MUSTER_CHECK(sized.ok());  // LargestDataParallelSize has said so
    json = *sized;
  }
  if (job.skipped_steps().empty()) return json;
  std::vector<int64_t> skip = spec.training.iterations_to_skip;
  skip.insert(skip.end(), job.skipped_steps().begin(), job.skipped_steps().end());
  const auto skipping = ApplySetOptions(
      json.empty() ? job.identity().spec_json : json,
      {absl::StrCat("training.iterations_to_skip=[", absl::StrJoin(skip, ","), "]")});
  MUSTER_CHECK(skipping.ok());
  return *skipping;
}

void Coordinator::RaiseEpoch(JobMachine& job, EpochPlan plan, absl::Time now,
                             std::vector<Action>* actions) {
  std::vector<std::string> nodes;
  for (const RankSlot& slot : plan.ranks) nodes.push_back(slot.node);
  const std::vector<int> buddies = BuddiesOf(nodes);
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) plan.ranks[rank].buddy = buddies[rank];
  std::vector<AssignmentRef> before;
  for (const JobMachine::Held& held : job.HeldWorkers()) before.push_back(held.assignment);
  JobEffects effects;
  if (job.state() == JobState::kQueued) {
    job.Start(std::move(plan), now, &effects);
  } else {
    job.Raise(std::move(plan), now, &effects);
  }
  std::set<std::string> leaving;
  for (const ExtraSlot& extra : job.extras()) {
    if (extra.role == ExtraSlot::Role::kLeaving) leaving.insert(extra.slot.worker);
  }
  for (const AssignmentRef& held : before) {
    if (!leaving.contains(held.worker)) membership_.Release(held);
  }
  for (const JobMachine::Held& held : job.HeldWorkers()) {
    if (!leaving.contains(held.assignment.worker)) membership_.Assign(held.assignment);
  }
  changed_.insert(job.job_id());
  // Any other epoch than the one that it asked for ends an examination.
  const auto arbiter = arbiters_.find(job.identity().sequence);
  if (arbiter != arbiters_.end() && !OrdersRerun(job.examine_json())) arbiter->second.Forget();
  Apply(job, effects, actions);
}

}  // namespace muster
