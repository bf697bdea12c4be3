// Coordinator's part that starts jobs: admission by the queue, placement of their ranks.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/schedule/from_spec.h"
#include "common/topology/placement.h"
#include "coordinator/core/coordinator.h"

namespace muster {

void Coordinator::Admit(absl::Time now, std::vector<Action>* actions) {
  while (admitted_ != std::pair(membership_.generation(), queue_generation_)) {
    admitted_ = {membership_.generation(), queue_generation_};
    AdmissionInput input{.supply = membership_.supply()};
    for (const int64_t sequence : live_) {
      const JobMachine& job = *jobs_.at(sequence);
      const ResourcesSpec& wanted = job.spec().resources;
      if (job.state() == JobState::kQueued) {
        input.jobs.push_back({.job_id = job.job_id(),
                              .kind = job.kind(),
                              .num_workers = static_cast<int>(wanted.world_size + wanted.spares),
                              .priority = wanted.priority,
                              .sequence = sequence});
      } else if (!job.released()) {
        input.holders.push_back({.job_id = job.job_id(),
                                 .kind = job.kind(),
                                 .num_workers = job.num_held(),
                                 .ending = job.ended()});
      }
    }
    if (input.jobs.empty()) return;
    if (!storage_.writable) input.paused = storage_.reason;
    for (const AdmissionDecision& decision : DecideAdmission(std::move(input))) {
      JobMachine& job = *MutableJob(decision.job_id);
      const int64_t version = job.version();
      if (decision.start) {
        StartJob(job, now, actions);
      } else {
        job.SetQueueReason(decision.reason);
      }
      if (job.version() != version) changed_.insert(job.job_id());
      Touch(job);
    }
  }
}

void Coordinator::StartJob(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  std::vector<PlacementWorker> idle;
  for (const auto& [name, worker] : membership_.workers()) {
    if (worker.info.kind != job.kind() || !membership_.IsIdle(worker)) continue;
    idle.push_back({name, membership_.FindAgent(worker.incarnation)->node, worker.info.index});
  }
  const auto topology = RankTopology::Create(TopologyOf(job.spec()));
  MUSTER_CHECK(topology.ok());  // checked when it was submitted
  const auto placement = PlaceRanks(*topology, idle);
  MUSTER_CHECK(placement.ok());  // admission has counted
  EpochPlan plan{.data_parallel_size = topology->dp()};
  std::vector<bool> used(idle.size(), false);
  for (const size_t i : placement->worker_of_rank) {
    used[i] = true;
    plan.ranks.push_back(SlotOn(idle[i].name, job));
  }
  for (size_t i = 0; i < idle.size(); ++i) {
    if (static_cast<int64_t>(plan.extras.size()) == job.spec().resources.spares) break;
    if (!used[i]) plan.extras.push_back({.slot = SlotOn(idle[i].name, job)});
  }
  RaiseEpoch(job, std::move(plan), now, actions);
}

RankSlot Coordinator::SlotOn(const std::string& name, const JobMachine& job) const {
  const Worker& worker = *membership_.FindWorker(name);
  const Agent& agent = *membership_.FindAgent(worker.incarnation);
  const int share = std::max(1, agent.num_cpus / static_cast<int>(agent.workers.size()));
  return {.worker = worker.info.name,
          .incarnation = agent.incarnation,
          .node = agent.node,
          .host_address = agent.address,
          .device = worker.info.device,
          .num_threads = static_cast<int>(job.spec().training.num_threads.value_or(share))};
}

}  // namespace muster
