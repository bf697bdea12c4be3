// Coordinator's part that decides about steps under examination: it knows the workers that could
// run them elsewhere.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/topology/rank_topology.h"
#include "coordinator/core/coordinator.h"

namespace muster {
namespace {

// Which copy of the model a rank computes for: experts serve several of the dense ones.
int ReplicaOf(const RankCoordinates& where, const JobSpec& spec) {
  return spec.model.num_experts.has_value() ? where.expert_dp : where.dp;
}

}  // namespace

RerunArbiter& Coordinator::ArbiterOf(const JobMachine& job) {
  return arbiters_.try_emplace(job.identity().sequence, job.spec().rerun.continue_on_correct)
      .first->second;
}

void Coordinator::OnExamined(JobMachine& job, int rank, const ExamineMessage& message,
                             absl::Time now) {
  RerunArbiter& arbiter = ArbiterOf(job);
  arbiter.SetEpoch(job.epoch());
  const auto outcome = arbiter.OnReport(rank, job.ranks()[rank].worker, message.json);
  if (!outcome.ok()) {
    job.NoteEvent(now, "rerun", absl::StrCat("rank ", rank, ": ", outcome.status().message()));
    return;
  }
  if (outcome->has_value())
    job.NoteVerdict(RerunVerdictName((*outcome)->verdict), (*outcome)->text, now);
}

void Coordinator::Arbitrate(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  const auto found = arbiters_.find(job.identity().sequence);
  if (found == arbiters_.end()) return;
  found->second.SetEpoch(job.epoch());
  if (!found->second.holds()) return;
  RerunArbiter::Places places;
  const auto topology = RankTopology::Create(job.topology());
  for (int rank = 0; rank < job.world_size(); ++rank) {
    places.workers.push_back(job.ranks()[rank].worker);
    places.replicas.push_back(topology.ok() ? ReplicaOf(topology->Coordinates(rank), job.spec())
                                            : 0);
  }
  for (const std::string& name : places.workers) {
    const Worker* worker = membership_.FindWorker(name);
    if (worker != nullptr && !worker->hold.quarantined.empty()) places.failed.insert(name);
  }
  for (const ExtraSlot& extra : job.extras()) {
    const Worker* worker = membership_.FindWorker(extra.slot.worker);
    const bool good = extra.role == ExtraSlot::Role::kSpare && worker != nullptr &&
                      !worker->hold.any() && extra.slot.trainer == RankSlot::Trainer::kLaunched &&
                      extra.slot.phase != "failed";
    if (good) places.spares.push_back(extra.slot.worker);
  }
  RerunRuling ruling = found->second.Rule(places);
  if (ruling.outcome.has_value()) {
    job.NoteVerdict(RerunVerdictName(ruling.outcome->verdict), ruling.outcome->text, now);
    if (!ruling.outcome->worker.empty())
      Quarantine(ruling.outcome->worker, ruling.outcome->text, now);
  }
  JobEffects effects;
  if (ruling.leave.has_value()) {
    const absl::Status left = job.LeaveHeldStep(ruling.leave->iteration, ruling.leave->exit_code,
                                                ruling.leave->reason, now, &effects);
    Apply(job, effects, actions);
    if (left.ok()) return;
    // Too many directives wait for the trainers: they are held until the step begins anew.
    ruling.order = {.kind = ExamineOrder::Kind::kRepeat,
                    .iteration = ruling.leave->iteration,
                    .reason = std::string(left.message())};
  }
  // Its end is a failure, and recovery finds another worker; the step begins anew there.
  if (ruling.condemned.has_value() &&
      job.Condemn(*ruling.condemned, FailureKind::kWrongResult, ruling.order.reason, now, &effects)
          .ok()) {
    Apply(job, effects, actions);
    return;
  }
  job.SetExamination(std::move(ruling.moves), EncodeExamineOrder(ruling.order),
                     ruling.order.reason);
}

}  // namespace muster
