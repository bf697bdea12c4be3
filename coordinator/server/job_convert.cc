#include "coordinator/server/job_convert.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/convert.h"
#include "common/rpc/report_convert.h"
#include "common/schedule/eval_schedule.h"
#include "common/schedule/from_spec.h"
#include "coordinator/core/drain_text.h"

namespace muster {
namespace {

constexpr int kMaxHeldBack = 16;

v1::JobState ToState(JobState state) {
  switch (state) {
    case JobState::kSubmitted:
      return v1::JOB_STATE_SUBMITTED;
    case JobState::kQueued:
      return v1::JOB_STATE_QUEUED;
    case JobState::kForming:
      return v1::JOB_STATE_FORMING;
    case JobState::kRunning:
      return v1::JOB_STATE_RUNNING;
    case JobState::kEvaluating:
      return v1::JOB_STATE_EVALUATING;
    case JobState::kCheckpointing:
      return v1::JOB_STATE_CHECKPOINTING;
    case JobState::kRerunning:
      return v1::JOB_STATE_RERUNNING;
    case JobState::kRecovering:
      return v1::JOB_STATE_RECOVERING;
    case JobState::kCompleted:
      return v1::JOB_STATE_COMPLETED;
    case JobState::kFailed:
      return v1::JOB_STATE_FAILED;
    case JobState::kCancelled:
      return v1::JOB_STATE_CANCELLED;
    case JobState::kExited:
      return v1::JOB_STATE_EXITED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

v1::FailureCause CauseToProto(const FailureCause& cause, JobDetail detail) {
  v1::FailureCause proto;
  if (cause.rank.has_value()) proto.set_rank(*cause.rank);
  proto.set_worker(cause.worker);
  proto.set_node(cause.node);
  if (cause.exit_code.has_value()) proto.set_exit_code(*cause.exit_code);
  if (cause.signal.has_value()) proto.set_signal(*cause.signal);
  proto.set_iteration(cause.iteration);
  proto.set_epoch(cause.epoch);
  proto.set_kind(cause.kind);
  proto.set_text(cause.text);
  *proto.mutable_time() = ToProto(cause.time);
  if (detail == JobDetail::kFull) {
    *proto.mutable_last_log_lines() = {cause.last_log_lines.begin(), cause.last_log_lines.end()};
  }
  return proto;
}

void FillResults(const JobHistory& history, v1::JobStatus* proto) {
  for (const auto& entry : history.evaluations().entries()) {
    v1::Evaluation* to = proto->add_evaluations();
    to->set_iteration(entry.value.iteration);
    to->set_split(entry.value.split);
    to->set_lm_loss(entry.value.lm_loss);
    to->set_ppl(entry.value.ppl);
    to->set_final(entry.value.final);
    to->set_epoch(entry.value.epoch);
  }
  for (const auto& entry : history.checkpoints().entries()) {
    v1::Checkpoint* to = proto->add_checkpoints();
    to->set_iteration(entry.value.iteration);
    to->set_path(entry.value.path);
    to->set_epoch(entry.value.epoch);
  }
}

v1::PhaseWait WaitToProto(const JobWait& wait) {
  v1::PhaseWait proto;
  proto.set_phase(wait.phase);
  *proto.mutable_elapsed() = ToProto(wait.elapsed);
  *proto.mutable_limit() = ToProto(wait.limit);
  proto.set_overdue(wait.overdue);
  proto.set_missing(wait.missing);
  return proto;
}

// The phases of which something is known, and the one that is waited for.
void FillLimits(const JobMachine& job, v1::JobStatus* proto) {
  for (int i = 0; i < kNumWaitPhases; ++i) {
    const auto phase = static_cast<WaitPhase>(i);
    const PhaseSamples& samples = job.phase_limits().Samples(phase);
    if (samples.count == 0 && job.wait_phase() != phase) continue;
    v1::PhaseLimit* to = proto->add_phase_limits();
    to->set_phase(WaitPhaseName(phase));
    *to->mutable_limit() = ToProto(job.phase_limits().Limit(phase));
    if (samples.count > 0) *to->mutable_longest() = ToProto(samples.longest);
    to->set_samples(samples.count);
    if (phase == WaitPhase::kStep && samples.count > 0) {
      *to->mutable_p99() = ToProto(job.phase_limits().StepP99());
    }
  }
}

void FillRecovery(const JobMachine& job, v1::JobStatus* proto) {
  for (const ExtraSlot& extra : job.extras()) {
    if (extra.role == ExtraSlot::Role::kSpare) proto->add_spares(extra.slot.worker);
  }
  for (const auto& [rank, cause] : job.stragglers()) {
    v1::Straggler* to = proto->add_stragglers();
    to->set_rank(rank);
    to->set_worker(job.ranks()[rank].worker);
    to->set_cause(StragglerCauseName(cause));
  }
  const Incident& incident = job.incident();
  if (job.ended() || (!incident.open && !job.change().has_value())) return;
  v1::Recovery* to = proto->mutable_recovery();
  if (!incident.open) {
    to->set_planned(true);
    to->set_what(job.change()->reason);
    to->set_iteration(job.iteration());
    return;
  }
  const bool waits = job.wants_plan();
  to->set_planned(incident.planned);
  if (!waits) to->set_kind(incident.kind);
  to->set_what(waits || incident.what.empty() ? "waits for its plan" : incident.what);
  *to->mutable_elapsed() =
      ToProto(std::max(job.seen_at() - incident.failed_at, absl::ZeroDuration()));
  to->set_iteration(incident.iteration);
}

}  // namespace

void FillHeldBack(const JobMachine& job, const Membership& members, v1::JobStatus* proto) {
  const auto supply = members.supply().find(job.kind());
  if (job.ended() || supply == members.supply().end() || supply->second.num_held() == 0) return;
  for (const auto& [name, worker] : members.workers()) {
    if (proto->held_back_size() == kMaxHeldBack) return;
    const bool of_job = worker.assignment.has_value() && worker.assignment->job_id == job.job_id();
    const bool tell = worker.info.kind == job.kind() &&
                      (of_job ? worker.hold.any() : !worker.hold.quarantined.empty());
    if (!tell) continue;
    v1::HeldWorker* to = proto->add_held_back();
    to->set_worker(name);
    const std::string drain = DrainText(job, worker);
    to->set_why(drain.empty() ? worker.hold.Text() : absl::StrCat(worker.hold.Text(), "; ", drain));
  }
}

v1::JobStatus ToProto(const JobMachine& job, JobDetail detail, const SignsOfLife& signs) {
  v1::JobStatus proto;
  proto.set_job_id(job.job_id());
  proto.set_name(job.spec().name);
  proto.set_state(ToState(job.state()));
  proto.set_version(job.version());
  proto.set_epoch(job.epoch());
  proto.set_iteration(job.iteration());
  proto.set_train_iters(job.train_iters());
  proto.set_consumed_samples(job.consumed_samples());
  proto.set_num_floating_point_operations_so_far(job.flops_so_far());
  if (!job.history().steps().empty()) {
    *proto.mutable_last() = ToProto(job.history().steps().newest());
  }
  if (!job.ended()) {
    const std::optional<int64_t> next =
        NextEvaluation(EvalScheduleOptionsOf(job.spec()), job.iteration(), job.train_iters());
    proto.set_next_evaluation(next.value_or(0));
  }
  proto.set_restarts(job.restarts());
  proto.set_steps_redone(job.totals().steps_redone);
  proto.set_recovery_seconds(job.totals().seconds);
  proto.set_exit_code(job.exit_code());
  proto.set_ended(job.ended());
  proto.set_reason(job.reason());
  if (job.cause().has_value()) *proto.mutable_cause() = CauseToProto(*job.cause(), detail);
  proto.set_world_size(job.world_size());
  proto.set_priority(job.spec().resources.priority);
  *proto.mutable_submitted_at() = ToProto(job.submitted_at());
  if (job.started_at().has_value()) *proto.mutable_started_at() = ToProto(*job.started_at());
  if (job.ended_at().has_value()) *proto.mutable_ended_at() = ToProto(*job.ended_at());
  proto.set_cancelling(job.cancelling());
  proto.set_progress(job.Progress());
  proto.set_workers_released(job.released());
  FillRecovery(job, &proto);
  if (detail == JobDetail::kFull) {
    if (const auto wait = job.Wait(signs)) *proto.mutable_wait() = WaitToProto(*wait);
    FillLimits(job, &proto);
    FillResults(job.history(), &proto);
  }
  return proto;
}

v1::MetricsRecord ToProto(const Ring<StepRecord>::Entry& entry) {
  v1::MetricsRecord proto;
  proto.set_index(entry.index);
  proto.set_epoch(entry.value.epoch);
  *proto.mutable_step() = ToProto(entry.value.step);
  *proto.mutable_time() = ToProto(entry.value.time);
  return proto;
}

v1::Event ToProto(const Ring<JobEvent>::Entry& entry) {
  v1::Event proto;
  proto.set_index(entry.index);
  *proto.mutable_time() = ToProto(entry.value.time);
  proto.set_epoch(entry.value.epoch);
  proto.set_kind(entry.value.kind);
  proto.set_text(entry.value.text);
  if (entry.value.rank >= 0) proto.set_rank(entry.value.rank);
  proto.set_worker(entry.value.worker);
  return proto;
}

v1::LogLine ToProto(const JobHistory::LogEntry& entry) {
  v1::LogLine proto;
  proto.set_index(entry.index);
  proto.set_rank(entry.value.rank);
  proto.set_epoch(entry.value.epoch);
  proto.set_worker(entry.value.worker);
  *proto.mutable_time() = ToProto(entry.value.time);
  proto.set_text(entry.value.text);
  return proto;
}

void FillTopology(const JobMachine& job, v1::GetTopologyResponse* response) {
  const auto topology = RankTopology::Create(job.topology());
  MUSTER_CHECK(topology.ok());  // checked when the job was submitted
  response->set_world_size(job.world_size());
  response->set_spec_json(job.launch_spec_json());
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const RankCoordinates at = topology->Coordinates(rank);
    v1::GetTopologyResponse::Rank* to = response->add_ranks();
    to->set_rank(rank);
    to->set_tp(at.tp);
    to->set_cp(at.cp);
    to->set_ep(at.ep);
    to->set_expert_tp(at.expert_tp);
    to->set_dp(at.dp);
    to->set_expert_dp(at.expert_dp);
    to->set_pp(at.pp);
    if (job.ranks().empty()) continue;
    to->set_worker(job.ranks()[rank].worker);
    to->set_node(job.ranks()[rank].node);
    to->set_device(job.ranks()[rank].device);
  }
}

}  // namespace muster
