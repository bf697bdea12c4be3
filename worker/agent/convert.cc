#include "worker/agent/convert.h"

#include "common/rpc/convert.h"

namespace muster {
namespace {

std::optional<Directive::Kind> ToKind(v1::DirectiveKind kind) {
  switch (kind) {
    case v1::DIRECTIVE_KIND_CHECKPOINT:
      return Directive::Kind::kCheckpoint;
    case v1::DIRECTIVE_KIND_EVALUATE:
      return Directive::Kind::kEvaluate;
    case v1::DIRECTIVE_KIND_STOP:
      return Directive::Kind::kStop;
    case v1::DIRECTIVE_KIND_CHECKPOINT_AND_STOP:
      return Directive::Kind::kCheckpointAndStop;
    case v1::DIRECTIVE_KIND_TRACE:
      return Directive::Kind::kTrace;
    case v1::DIRECTIVE_KIND_REFORM:
      return Directive::Kind::kReform;
    default:
      return std::nullopt;
  }
}

LaunchOrder ToLaunch(const v1::Launch& launch) {
  LaunchOrder order{.job_id = launch.job_id(),
                    .epoch = launch.epoch(),
                    .spec_json = launch.spec_json(),
                    .world_size = launch.world_size(),
                    .directives_through = launch.directives_through(),
                    .num_helpers = launch.num_helpers(),
                    .ledger_through = launch.ledger_through(),
                    .examine_json = launch.examine_json()};
  for (const v1::Assignment& assignment : launch.assignments()) {
    order.assignments.push_back({.worker = assignment.worker(),
                                 .rank = assignment.rank(),
                                 .host_address = assignment.host_address(),
                                 .device = assignment.device(),
                                 .num_threads = assignment.num_threads(),
                                 .buddy = assignment.has_buddy() ? assignment.buddy() : -1});
  }
  return order;
}

WelcomeOrder ToWelcome(const v1::Welcome& welcome) {
  WelcomeOrder order{.reports_through = welcome.reports_through()};
  for (const v1::AssignmentRef& ref : welcome.running()) {
    order.running.push_back({ref.worker(), ref.job_id(), ref.epoch()});
  }
  return order;
}

// Fills the report's oneof.
struct FillReport {
  v1::TrainerReport* out;

  void operator()(const PhaseMessage& m) {
    out->mutable_phase()->set_phase(m.phase);
    out->mutable_phase()->set_detail(m.detail);
  }
  void operator()(const PublishUniqueIdMessage& m) { out->mutable_unique_id()->set_id(m.id); }
  void operator()(const StepMessage& m) {
    v1::StepReport* step = out->mutable_step();
    step->set_iteration(m.iteration);
    step->set_consumed_samples(m.consumed_samples);
    if (m.lm_loss) step->set_lm_loss(*m.lm_loss);
    step->set_loss_text(m.loss_text);
    if (m.grad_norm) step->set_grad_norm(*m.grad_norm);
    if (m.num_zeros) step->set_num_zeros(*m.num_zeros);
    if (m.params_norm) step->set_params_norm(*m.params_norm);
    if (m.load_balancing_loss) step->set_load_balancing_loss(*m.load_balancing_loss);
    if (m.seq_load_balancing_loss) step->set_seq_load_balancing_loss(*m.seq_load_balancing_loss);
    if (m.global_load_balancing_loss)
      step->set_global_load_balancing_loss(*m.global_load_balancing_loss);
    if (m.z_loss) step->set_z_loss(*m.z_loss);
    step->set_learning_rate(m.learning_rate);
    step->set_loss_scale(m.loss_scale);
    step->set_elapsed_ms(m.elapsed_ms);
    step->set_tokens_per_s(m.tokens_per_s);
    step->set_tflops_per_device(m.tflops_per_device);
    step->set_skipped(m.skipped);
    step->set_num_floating_point_operations_so_far(m.num_floating_point_operations_so_far);
    step->set_memory_bytes(m.memory_bytes);
    step->set_applied_directive(m.applied_directive);
    step->set_global_batch_size(m.global_batch_size);
    for (const auto& [name, ms] : m.timers_ms) (*step->mutable_timers_ms())[name] = ms;
  }
  void operator()(const EvaluationMessage& m) {
    v1::EvaluationReport* evaluation = out->mutable_evaluation();
    evaluation->set_iteration(m.iteration);
    evaluation->set_split(m.split);
    evaluation->set_lm_loss(m.lm_loss);
    evaluation->set_ppl(m.ppl);
    evaluation->set_final(m.final);
  }
  void operator()(const CheckpointMessage& m) {
    v1::CheckpointReport* checkpoint = out->mutable_checkpoint();
    checkpoint->set_iteration(m.iteration);
    checkpoint->set_path(m.path);
    checkpoint->set_ok(m.ok);
    checkpoint->set_error(m.error);
    checkpoint->set_elapsed_ms(m.elapsed_ms);
  }
  void operator()(const EventMessage& m) {
    out->mutable_event()->set_kind(m.kind);
    out->mutable_event()->set_text(m.text);
  }
  void operator()(const DoneMessage& m) {
    out->mutable_done()->set_exit_code(m.exit_code);
    out->mutable_done()->set_reason(m.reason);
  }
  void operator()(const FailedMessage& m) {
    out->mutable_failed()->set_reason(m.reason);
    out->mutable_failed()->set_collective(m.collective);
  }
  void operator()(const TrainerExited& m) {
    v1::ExitedReport* exited = out->mutable_exited();
    if (!m.launch_error.empty()) {
      exited->set_launch_error(m.launch_error);
    } else if (m.signal != 0) {
      exited->set_signal(m.signal);
    } else {
      exited->set_exit_code(m.exit_code);
    }
    for (const std::string& line : m.last_log_lines) exited->add_last_log_lines(Utf8(line));
    exited->set_pid(m.pid);
    exited->set_oom_killed(m.oom_killed);
  }
  void operator()(const RestoredMessage& m) {
    v1::RestoredReport* restored = out->mutable_restored();
    restored->set_iteration(m.iteration);
    restored->set_source(m.source);
    restored->set_text(m.text);
    restored->set_form_ms(m.form_ms);
    restored->set_state_ms(m.state_ms);
    restored->set_bytes(m.bytes);
  }
  void operator()(const RankTimesMessage& m) {
    v1::RankTimesReport* times = out->mutable_rank_times();
    times->set_iteration(m.iteration);
    times->set_steps(m.steps);
    times->set_compute_ms(m.compute_ms);
    times->set_communication_wait_ms(m.communication_wait_ms);
    times->set_data_ms(m.data_ms);
  }
  void operator()(const ExamineMessage& m) {
    out->mutable_examine()->set_iteration(m.iteration);
    out->mutable_examine()->set_json(m.json);
  }
  void operator()(const TrainerProbed& m) {
    v1::ProbeReport* probe = out->mutable_probe();
    probe->set_request(m.request);
    probe->set_running(m.running);
    probe->set_process_state(m.process_state);
    probe->set_cpu_ms(m.cpu_ms);
    if (!m.reply) return;
    v1::ProbeReply* reply = probe->mutable_reply();
    reply->set_iteration(m.reply->iteration);
    reply->set_phase(m.reply->phase);
    reply->set_thread_cpu_ms(m.reply->thread_cpu_ms);
    for (const OpArrival& op : m.reply->ops) {
      v1::OpArrival* added = reply->add_ops();
      added->set_group(op.group);
      added->mutable_ranks()->Add(op.ranks.begin(), op.ranks.end());
      added->set_sequence(op.sequence);
      added->set_operation(op.operation);
      added->set_done(op.done);
      added->set_age_ms(op.age_ms);
    }
  }
  void operator()(const DeviceCheck& m) { *out->mutable_device_check() = ToProto(m); }
  void operator()(const NodeLogLines& m) {
    for (const std::string& line : m.lines) out->mutable_log()->add_lines(Utf8(line));
  }

  // A proto string must be UTF-8, or the whole batch would be refused; a log may hold anything.
  static std::string Utf8(const std::string& line) {
    std::string result;
    for (size_t i = 0; i < line.size();) {
      const unsigned char lead = line[i];
      const size_t length = lead < 0x80                   ? 1
                            : lead >= 0xc2 && lead < 0xe0 ? 2
                            : lead >= 0xe0 && lead < 0xf0 ? 3
                            : lead >= 0xf0 && lead < 0xf5 ? 4
                                                          : 0;
      bool good = length > 0 && i + length <= line.size();
      for (size_t k = 1; good && k < length; ++k) good = (line[i + k] & 0xc0) == 0x80;
      const unsigned char second = length > 2 && good ? line[i + 1] : 0x80;
      // Overlong forms, surrogates and code points above 10FFFF are no UTF-8 either.
      if (lead == 0xe0 && second < 0xa0) good = false;
      if (lead == 0xed && second > 0x9f) good = false;
      if (lead == 0xf0 && second < 0x90) good = false;
      if (lead == 0xf4 && second > 0x8f) good = false;
      if (good) {
        result.append(line, i, length);
        i += length;
      } else {
        result += '?';
        ++i;
      }
    }
    return result;
  }
};

}  // namespace

std::optional<CoordinatorOrder> ToOrder(const v1::ConnectResponse& response) {
  switch (response.message_case()) {
    case v1::ConnectResponse::kWelcome:
      return ToWelcome(response.welcome());
    case v1::ConnectResponse::kLaunch:
      return ToLaunch(response.launch());
    case v1::ConnectResponse::kUniqueId: {
      const v1::UniqueId& id = response.unique_id();
      return UniqueIdOrder{id.job_id(), id.epoch(), id.id()};
    }
    case v1::ConnectResponse::kDirective: {
      const v1::Directive& directive = response.directive();
      const std::optional<Directive::Kind> kind = ToKind(directive.kind());
      if (!kind) return std::nullopt;
      DirectiveOrder order{
          directive.job_id(),
          directive.epoch(),
          {.number = directive.number(), .kind = *kind, .reason = directive.reason()}};
      if (directive.has_iterations()) order.directive.iterations = directive.iterations();
      return order;
    }
    case v1::ConnectResponse::kAbort:
      return AbortOrder{response.abort().job_id(), response.abort().epoch(),
                        response.abort().reason()};
    case v1::ConnectResponse::kStop: {
      const v1::StopTrainer& stop = response.stop();
      return StopOrder{
          {stop.worker(), stop.job_id(), stop.epoch()}, FromProto(stop.grace()), stop.reason()};
    }
    case v1::ConnectResponse::kAck:
      return AckOrder{response.ack().through()};
    case v1::ConnectResponse::kForgetJob:
      return ForgetJobOrder{response.forget_job().job_id()};
    case v1::ConnectResponse::kProbe:
      return ProbeJobOrder{response.probe().job_id(), response.probe().epoch(),
                           response.probe().request()};
    case v1::ConnectResponse::MESSAGE_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

v1::DeviceCheck ToProto(const DeviceCheck& check) {
  v1::DeviceCheck out;
  out.set_device(check.device);
  out.set_kind(check.kind);
  out.set_serial(check.serial);
  out.set_fingerprint(check.fingerprint);
  out.set_copy_gb_per_s(check.copy_gb_per_s);
  out.set_elapsed_ms(check.elapsed_ms);
  out.set_error(check.error);
  out.set_not_run(check.not_run);
  return out;
}

v1::TrainerReport ToProto(const NodeReport& report) {
  v1::TrainerReport out;
  out.set_worker(report.assignment.worker);
  out.set_job_id(report.assignment.job_id);
  out.set_epoch(report.assignment.epoch);
  out.set_rank(report.rank);
  std::visit(FillReport{&out}, report.report);
  return out;
}

v1::ReportBatch ToProto(const NodeReportBatch& batch) {
  v1::ReportBatch out;
  out.set_sequence(batch.sequence);
  for (const NodeReport& report : batch.reports) *out.add_reports() = ToProto(report);
  return out;
}

v1::Heartbeat ToProto(int64_t sequence, const std::vector<JobProgress>& progress) {
  v1::Heartbeat out;
  out.set_sequence(sequence);
  for (const JobProgress& job : progress) {
    v1::TrainerProgress* added = out.add_progress();
    added->set_job_id(job.job_id);
    added->set_epoch(job.epoch);
    added->set_iteration(job.iteration);
  }
  return out;
}

}  // namespace muster
