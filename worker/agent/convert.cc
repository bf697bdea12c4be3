#include "worker/agent/convert.h"

#include "common/rpc/convert.h"
#include "common/rpc/report_convert.h"

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
    case v1::DIRECTIVE_KIND_CHECKPOINT_AND_EXIT:
      return Directive::Kind::kCheckpointAndExit;
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

  // What the trainer said itself.
  template <typename Message>
  void operator()(const Message& m) {
    SetBody(m, out);
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
  void operator()(const TrainerProbed& m) {
    v1::ProbeReport* probe = out->mutable_probe();
    probe->set_request(m.request);
    probe->set_running(m.running);
    probe->set_process_state(m.process_state);
    probe->set_cpu_ms(m.cpu_ms);
    if (m.reply) *probe->mutable_reply() = ToProto(*m.reply);
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
      order.directive.iteration = directive.iteration();
      order.directive.exit_code = directive.exit_code();
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
