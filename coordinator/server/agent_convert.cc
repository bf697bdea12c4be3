#include "coordinator/server/agent_convert.h"

#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/report_convert.h"

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
  if (probe.has_reply()) report.reply = FromProto(probe.reply(), probe, epoch);
  return report;
}

absl::StatusOr<ReportBody> BodyOf(const v1::TrainerReport& report) {
  std::optional<ReportBody> body;
  if (std::optional<TrainerToAgent> message = MessageOf(report)) {
    std::visit(
        [&body](auto&& said) {
          using Message = std::decay_t<decltype(said)>;
          if constexpr (std::is_constructible_v<ReportBody, Message>) body = std::move(said);
        },
        *std::move(message));
  } else if (report.has_exited()) {
    body = FromExited(report.exited());
  } else if (report.has_log()) {
    body = LogLines{{report.log().lines().begin(), report.log().lines().end()}};
  } else if (report.has_probe()) {
    body = FromProbe(report.probe(), report.epoch());
  } else if (report.has_device_check()) {
    body = FromProto(report.device_check());
  }
  if (body.has_value()) return *std::move(body);
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
    case Directive::Kind::kCheckpointAndExit:
      return v1::DIRECTIVE_KIND_CHECKPOINT_AND_EXIT;
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
    if (worker.has_check()) agent.checks.push_back(FromProto(worker.check()));
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
    if (directive->directive.kind == Directive::Kind::kCheckpointAndExit) {
      to->set_iteration(directive->directive.iteration);
      to->set_exit_code(directive->directive.exit_code);
    }
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

}  // namespace muster
