#include "coordinator/server/agent_convert.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace muster {
namespace {

ExitedReport FromExited(const v1::ExitedReport& exited) {
  ExitedReport report;
  if (exited.has_exit_code()) report.exit_code = exited.exit_code();
  if (exited.has_signal()) report.signal = exited.signal();
  report.launch_error = exited.launch_error();
  report.last_log_lines = {exited.last_log_lines().begin(), exited.last_log_lines().end()};
  report.oom_killed = exited.oom_killed();
  return report;
}

ProbeReport FromProbe(const v1::ProbeReport& probe, int64_t epoch) {
  ProbeReport report{.request = probe.request(),
                     .running = probe.running(),
                     .process_state = probe.process_state(),
                     .cpu_ms = probe.cpu_ms()};
  if (!probe.has_reply()) return report;
  ProbeReplyMessage& reply = report.reply.emplace();
  reply.epoch = epoch;
  reply.request = probe.request();
  reply.iteration = probe.reply().iteration();
  reply.phase = probe.reply().phase();
  reply.thread_cpu_ms = probe.reply().thread_cpu_ms();
  for (const v1::OpArrival& op : probe.reply().ops()) {
    reply.ops.push_back({.group = op.group(),
                         .ranks = {op.ranks().begin(), op.ranks().end()},
                         .sequence = op.sequence(),
                         .operation = op.operation(),
                         .done = op.done(),
                         .age_ms = op.age_ms()});
  }
  return report;
}

DeviceCheck FromCheck(const v1::DeviceCheck& check) {
  return {.device = check.device(),
          .kind = check.kind(),
          .serial = check.serial(),
          .fingerprint = check.fingerprint(),
          .copy_gb_per_s = check.copy_gb_per_s(),
          .elapsed_ms = check.elapsed_ms(),
          .error = check.error(),
          .not_run = check.not_run()};
}

absl::StatusOr<ReportBody> BodyOf(const v1::TrainerReport& report) {
  const int64_t epoch = report.epoch();
  switch (report.report_case()) {
    case v1::TrainerReport::kPhase:
      return PhaseMessage{epoch, report.phase().phase(), report.phase().detail()};
    case v1::TrainerReport::kUniqueId:
      return PublishUniqueIdMessage{epoch, report.unique_id().id()};
    case v1::TrainerReport::kStep:
      return FromProto(report.step(), epoch);
    case v1::TrainerReport::kEvaluation:
      return EvaluationMessage{.epoch = epoch,
                               .iteration = report.evaluation().iteration(),
                               .split = report.evaluation().split(),
                               .lm_loss = report.evaluation().lm_loss(),
                               .ppl = report.evaluation().ppl(),
                               .final = report.evaluation().final()};
    case v1::TrainerReport::kCheckpoint:
      return CheckpointMessage{.epoch = epoch,
                               .iteration = report.checkpoint().iteration(),
                               .path = report.checkpoint().path(),
                               .ok = report.checkpoint().ok(),
                               .error = report.checkpoint().error(),
                               .elapsed_ms = report.checkpoint().elapsed_ms()};
    case v1::TrainerReport::kEvent:
      return EventMessage{epoch, report.event().kind(), report.event().text()};
    case v1::TrainerReport::kDone:
      return DoneMessage{epoch, report.done().exit_code(), report.done().reason()};
    case v1::TrainerReport::kFailed:
      return FailedMessage{epoch, report.failed().reason(), report.failed().collective()};
    case v1::TrainerReport::kExited:
      return FromExited(report.exited());
    case v1::TrainerReport::kLog:
      return LogLines{{report.log().lines().begin(), report.log().lines().end()}};
    case v1::TrainerReport::kRestored:
      return RestoredMessage{.epoch = epoch,
                             .iteration = report.restored().iteration(),
                             .source = report.restored().source(),
                             .text = report.restored().text(),
                             .form_ms = report.restored().form_ms(),
                             .state_ms = report.restored().state_ms(),
                             .bytes = report.restored().bytes()};
    case v1::TrainerReport::kRankTimes:
      return RankTimesMessage{.epoch = epoch,
                              .iteration = report.rank_times().iteration(),
                              .steps = report.rank_times().steps(),
                              .compute_ms = report.rank_times().compute_ms(),
                              .communication_wait_ms = report.rank_times().communication_wait_ms(),
                              .data_ms = report.rank_times().data_ms()};
    case v1::TrainerReport::kExamine:
      return ExamineMessage{epoch, report.examine().iteration(), report.examine().json()};
    case v1::TrainerReport::kProbe:
      return FromProbe(report.probe(), epoch);
    case v1::TrainerReport::kDeviceCheck:
      return FromCheck(report.device_check());
    case v1::TrainerReport::REPORT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("a report of rank ", report.rank(), " of ",
                                                 report.job_id(), " has no body known here"));
}

v1::WorkerState ToState(AgentState state) {
  switch (state) {
    case AgentState::kJoining:
      return v1::WORKER_STATE_JOINING;
    case AgentState::kAlive:
      return v1::WORKER_STATE_ALIVE;
    case AgentState::kSuspect:
      return v1::WORKER_STATE_SUSPECT;
    case AgentState::kLost:
      return v1::WORKER_STATE_LOST;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

v1::DirectiveKind ToKind(Directive::Kind kind) {
  switch (kind) {
    case Directive::Kind::kCheckpoint:
      return v1::DIRECTIVE_KIND_CHECKPOINT;
    case Directive::Kind::kEvaluate:
      return v1::DIRECTIVE_KIND_EVALUATE;
    case Directive::Kind::kStop:
      return v1::DIRECTIVE_KIND_STOP;
    case Directive::Kind::kCheckpointAndStop:
      return v1::DIRECTIVE_KIND_CHECKPOINT_AND_STOP;
    case Directive::Kind::kTrace:
      return v1::DIRECTIVE_KIND_TRACE;
    case Directive::Kind::kReform:
      return v1::DIRECTIVE_KIND_REFORM;
  }
  return v1::DIRECTIVE_KIND_UNSPECIFIED;
}

v1::Launch ToLaunch(const LaunchMessage& launch) {
  v1::Launch proto;
  proto.set_job_id(launch.job_id);
  proto.set_epoch(launch.epoch);
  proto.set_spec_json(launch.spec_json);
  proto.set_world_size(launch.world_size);
  proto.set_directives_through(launch.directives_through);
  proto.set_num_helpers(launch.num_helpers);
  proto.set_ledger_through(launch.ledger_through);
  proto.set_examine_json(launch.examine_json);
  for (const LaunchMessage::Assignment& assignment : launch.assignments) {
    v1::Assignment* to = proto.add_assignments();
    to->set_worker(assignment.worker);
    to->set_rank(assignment.rank);
    to->set_host_address(assignment.host_address);
    to->set_device(assignment.device);
    to->set_num_threads(assignment.num_threads);
    to->set_buddy(assignment.buddy);
  }
  return proto;
}

}  // namespace

absl::StatusOr<RegisterAgent> FromProto(const v1::RegisterRequest& request,
                                        const std::string& observed_host) {
  RegisterAgent agent{.incarnation = request.incarnation(),
                      .node = request.node(),
                      .version = request.version(),
                      .address = request.advertised_address().empty()
                                     ? observed_host
                                     : request.advertised_address(),
                      .protocol_version = request.protocol_version(),
                      .num_cpus = request.num_cpus()};
  for (const v1::WorkerDescription& worker : request.workers()) {
    if (worker.kind() != v1::DEVICE_KIND_CPU && worker.kind() != v1::DEVICE_KIND_CUDA) {
      return absl::InvalidArgumentError(
          absl::StrCat("workers.kind=", static_cast<int>(worker.kind()), " of \"", worker.name(),
                       "\": must be CPU or CUDA"));
    }
    agent.workers.push_back(
        {.name = worker.name(),
         .device = worker.device(),
         .kind = worker.kind() == v1::DEVICE_KIND_CPU ? DeviceKind::kCpu : DeviceKind::kCuda,
         .index = worker.index()});
    if (worker.has_check()) agent.checks.push_back(FromCheck(worker.check()));
  }
  // Of all workers or of none: they are told apart by their places.
  if (agent.checks.size() != agent.workers.size()) agent.checks.clear();
  return agent;
}

absl::StatusOr<ReportBatch> FromProto(const v1::ReportBatch& batch, StreamId stream) {
  ReportBatch result{.stream = stream, .sequence = batch.sequence()};
  result.reports.reserve(batch.reports_size());
  for (const v1::TrainerReport& report : batch.reports()) {
    ASSIGN_OR_RETURN(ReportBody body, BodyOf(report));
    result.reports.push_back(
        {{report.worker(), report.job_id(), report.epoch(), report.rank()}, std::move(body)});
  }
  return result;
}

v1::ConnectResponse ToProto(const AgentMessage& message) {
  v1::ConnectResponse proto;
  if (const auto* welcome = std::get_if<WelcomeMessage>(&message)) {
    proto.mutable_welcome()->set_reports_through(welcome->reports_through);
    for (const AssignmentRef& held : welcome->running) {
      v1::AssignmentRef* to = proto.mutable_welcome()->add_running();
      to->set_worker(held.worker);
      to->set_job_id(held.job_id);
      to->set_epoch(held.epoch);
      to->set_rank(held.rank);
    }
  } else if (const auto* launch = std::get_if<LaunchMessage>(&message)) {
    *proto.mutable_launch() = ToLaunch(*launch);
  } else if (const auto* id = std::get_if<UniqueIdBroadcast>(&message)) {
    proto.mutable_unique_id()->set_job_id(id->job_id);
    proto.mutable_unique_id()->set_epoch(id->epoch);
    proto.mutable_unique_id()->set_id(id->id);
  } else if (const auto* directive = std::get_if<DirectiveBroadcast>(&message)) {
    v1::Directive* to = proto.mutable_directive();
    to->set_job_id(directive->job_id);
    to->set_epoch(directive->epoch);
    to->set_number(directive->directive.number);
    to->set_kind(ToKind(directive->directive.kind));
    to->set_reason(directive->directive.reason);
    if (directive->directive.iterations) to->set_iterations(*directive->directive.iterations);
  } else if (const auto* abort = std::get_if<AbortBroadcast>(&message)) {
    proto.mutable_abort()->set_job_id(abort->job_id);
    proto.mutable_abort()->set_epoch(abort->epoch);
    proto.mutable_abort()->set_reason(abort->reason);
  } else if (const auto* stop = std::get_if<StopTrainerMessage>(&message)) {
    v1::StopTrainer* to = proto.mutable_stop();
    to->set_worker(stop->worker);
    to->set_job_id(stop->job_id);
    to->set_epoch(stop->epoch);
    *to->mutable_grace() = ToProto(stop->grace);
    to->set_reason(stop->reason);
  } else if (const auto* ack = std::get_if<AckMessage>(&message)) {
    proto.mutable_ack()->set_through(ack->through);
  } else if (const auto* forget = std::get_if<ForgetJobMessage>(&message)) {
    proto.mutable_forget_job()->set_job_id(forget->job_id);
  } else if (const auto* probe = std::get_if<ProbeOrder>(&message)) {
    proto.mutable_probe()->set_job_id(probe->job_id);
    proto.mutable_probe()->set_epoch(probe->epoch);
    proto.mutable_probe()->set_request(probe->request);
  }
  return proto;
}

v1::WorkerStatus ToProto(const Worker& worker, const Agent& agent, absl::Time now) {
  v1::WorkerStatus proto;
  proto.mutable_description()->set_name(worker.info.name);
  proto.mutable_description()->set_device(worker.info.device);
  proto.mutable_description()->set_kind(
      worker.info.kind == DeviceKind::kCpu ? v1::DEVICE_KIND_CPU : v1::DEVICE_KIND_CUDA);
  proto.mutable_description()->set_index(worker.info.index);
  proto.set_node(agent.node);
  proto.set_address(agent.address);
  proto.set_state(ToState(agent.state));
  proto.set_draining(worker.hold.draining);
  proto.set_cordoned(worker.hold.cordoned);
  proto.set_quarantined(worker.hold.quarantined);
  if (worker.assignment.has_value()) {
    proto.set_job_id(worker.assignment->job_id);
    proto.set_epoch(worker.assignment->epoch);
    proto.set_rank(worker.assignment->rank);
  }
  proto.set_phase(worker.phase);
  *proto.mutable_since_last_heartbeat() = ToProto(now - agent.last_sign);
  proto.set_version(agent.version);
  proto.set_reason(agent.reason);
  return proto;
}

StepMessage FromProto(const v1::StepReport& step, int64_t epoch) {
  StepMessage message;
  message.epoch = epoch;
  message.iteration = step.iteration();
  message.consumed_samples = step.consumed_samples();
  if (step.has_lm_loss()) message.lm_loss = step.lm_loss();
  message.loss_text = step.loss_text();
  if (step.has_grad_norm()) message.grad_norm = step.grad_norm();
  if (step.has_num_zeros()) message.num_zeros = step.num_zeros();
  if (step.has_params_norm()) message.params_norm = step.params_norm();
  if (step.has_load_balancing_loss()) message.load_balancing_loss = step.load_balancing_loss();
  if (step.has_seq_load_balancing_loss())
    message.seq_load_balancing_loss = step.seq_load_balancing_loss();
  if (step.has_global_load_balancing_loss())
    message.global_load_balancing_loss = step.global_load_balancing_loss();
  if (step.has_z_loss()) message.z_loss = step.z_loss();
  message.learning_rate = step.learning_rate();
  message.loss_scale = step.loss_scale();
  message.elapsed_ms = step.elapsed_ms();
  message.tokens_per_s = step.tokens_per_s();
  message.tflops_per_device = step.tflops_per_device();
  message.skipped = step.skipped();
  message.num_floating_point_operations_so_far = step.num_floating_point_operations_so_far();
  message.memory_bytes = step.memory_bytes();
  message.applied_directive = step.applied_directive();
  message.global_batch_size = step.global_batch_size();
  message.timers_ms = {step.timers_ms().begin(), step.timers_ms().end()};
  return message;
}

v1::StepReport ToProto(const StepMessage& step) {
  v1::StepReport proto;
  proto.set_iteration(step.iteration);
  proto.set_consumed_samples(step.consumed_samples);
  if (step.lm_loss.has_value()) proto.set_lm_loss(*step.lm_loss);
  proto.set_loss_text(step.loss_text);
  if (step.grad_norm.has_value()) proto.set_grad_norm(*step.grad_norm);
  if (step.num_zeros.has_value()) proto.set_num_zeros(*step.num_zeros);
  if (step.params_norm.has_value()) proto.set_params_norm(*step.params_norm);
  if (step.load_balancing_loss.has_value())
    proto.set_load_balancing_loss(*step.load_balancing_loss);
  if (step.seq_load_balancing_loss.has_value())
    proto.set_seq_load_balancing_loss(*step.seq_load_balancing_loss);
  if (step.global_load_balancing_loss.has_value())
    proto.set_global_load_balancing_loss(*step.global_load_balancing_loss);
  if (step.z_loss.has_value()) proto.set_z_loss(*step.z_loss);
  proto.set_learning_rate(step.learning_rate);
  proto.set_loss_scale(step.loss_scale);
  proto.set_elapsed_ms(step.elapsed_ms);
  proto.set_tokens_per_s(step.tokens_per_s);
  proto.set_tflops_per_device(step.tflops_per_device);
  proto.set_skipped(step.skipped);
  proto.set_num_floating_point_operations_so_far(step.num_floating_point_operations_so_far);
  proto.set_memory_bytes(step.memory_bytes);
  proto.set_applied_directive(step.applied_directive);
  proto.set_global_batch_size(step.global_batch_size);
  proto.mutable_timers_ms()->insert(step.timers_ms.begin(), step.timers_ms.end());
  return proto;
}

}  // namespace muster
