#include "tests/sim/sim_convert.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

AssignmentKey ToKey(const AssignmentRef& from) { return {from.worker, from.job_id, from.epoch}; }

CoordinatorOrder To(const WelcomeMessage& from) {
  WelcomeOrder order{.reports_through = from.reports_through};
  for (const AssignmentRef& running : from.running) order.running.push_back(ToKey(running));
  return order;
}
CoordinatorOrder To(const LaunchMessage& from) {
  LaunchOrder order{.job_id = from.job_id,
                    .epoch = from.epoch,
                    .spec_json = from.spec_json,
                    .world_size = from.world_size,
                    .directives_through = from.directives_through,
                    .num_helpers = from.num_helpers,
                    .ledger_through = from.ledger_through,
                    .examine_json = from.examine_json};
  for (const LaunchMessage::Assignment& a : from.assignments) {
    order.assignments.push_back({.worker = a.worker,
                                 .rank = a.rank,
                                 .host_address = a.host_address,
                                 .device = a.device,
                                 .num_threads = a.num_threads,
                                 .buddy = a.buddy});
  }
  return order;
}
CoordinatorOrder To(const UniqueIdBroadcast& from) {
  return UniqueIdOrder{from.job_id, from.epoch, from.id};
}
CoordinatorOrder To(const DirectiveBroadcast& from) {
  return DirectiveOrder{from.job_id, from.epoch, from.directive};
}
CoordinatorOrder To(const AbortBroadcast& from) {
  return AbortOrder{from.job_id, from.epoch, from.reason};
}
CoordinatorOrder To(const StopTrainerMessage& from) {
  return StopOrder{{from.worker, from.job_id, from.epoch}, from.grace, from.reason};
}
CoordinatorOrder To(const AckMessage& from) { return AckOrder{from.through}; }
CoordinatorOrder To(const ForgetJobMessage& from) { return ForgetJobOrder{from.job_id}; }
CoordinatorOrder To(const ProbeOrder& from) {
  return ProbeJobOrder{from.job_id, from.epoch, from.request};
}

std::string Text(const WelcomeMessage& m) {
  return absl::StrCat("welcome, reports through ", m.reports_through, ", ", m.running.size(),
                      " trainers");
}
std::string Text(const LaunchMessage& m) {
  return absl::StrCat("launch ", m.job_id, " epoch ", m.epoch, " ranks ", m.assignments.size());
}
std::string Text(const UniqueIdBroadcast& m) { return absl::StrCat("unique id of ", m.job_id); }
std::string Text(const DirectiveBroadcast& m) {
  return absl::StrCat("directive ", m.directive.number, " of ", m.job_id);
}
std::string Text(const AbortBroadcast& m) {
  return absl::StrCat("abort ", m.job_id, ": ", m.reason);
}
std::string Text(const StopTrainerMessage& m) {
  return absl::StrCat("stop ", m.worker, " of ", m.job_id);
}
std::string Text(const AckMessage& m) { return absl::StrCat("ack ", m.through); }
std::string Text(const ForgetJobMessage& m) { return absl::StrCat("forget ", m.job_id); }
std::string Text(const ProbeOrder& m) {
  return absl::StrCat("probe ", m.request, " of ", m.job_id);
}

std::string Name(const ReportBody& body) {
  static constexpr const char* kNames[] = {"phase",      "unique id", "step",        "evaluation",
                                           "checkpoint", "event",     "done",        "failed",
                                           "exited",     "lines",     "restored",    "rank times",
                                           "examine",    "probe",     "device check"};
  const auto* phase = std::get_if<PhaseMessage>(&body);
  return phase != nullptr ? phase->phase : kNames[body.index()];
}

ReportBody ToBody(const TrainerExited& from) {
  ExitedReport to{.launch_error = from.launch_error,
                  .last_log_lines = from.last_log_lines,
                  .oom_killed = from.oom_killed};
  if (from.launch_error.empty()) {
    if (from.signal != 0) {
      to.signal = from.signal;
    } else {
      to.exit_code = from.exit_code;
    }
  }
  return to;
}
ReportBody ToBody(const NodeLogLines& from) { return LogLines{from.lines}; }
ReportBody ToBody(const TrainerProbed& from) {
  return ProbeReport{.request = from.request,
                     .running = from.running,
                     .process_state = from.process_state,
                     .cpu_ms = from.cpu_ms,
                     .reply = from.reply};
}
template <typename Message>
ReportBody ToBody(const Message& from) {
  return from;
}

}  // namespace

CoordinatorOrder ToOrder(const AgentMessage& message) {
  return std::visit([](const auto& m) { return To(m); }, message);
}

ReportBatch ToEvent(const NodeReportBatch& batch, StreamId stream) {
  ReportBatch event{.stream = stream, .sequence = batch.sequence};
  for (const NodeReport& report : batch.reports) {
    const AssignmentKey& key = report.assignment;
    event.reports.push_back({{key.worker, key.job_id, key.epoch, report.rank},
                             std::visit([](const auto& r) { return ToBody(r); }, report.report)});
  }
  return event;
}

std::string Describe(const AgentMessage& message) {
  return std::visit([](const auto& m) { return Text(m); }, message);
}

std::string Describe(const ReportBatch& batch) {
  std::string text = absl::StrCat("batch ", batch.sequence, " by stream ", batch.stream);
  for (const TrainerReport& report : batch.reports) {
    absl::StrAppend(&text, "; ", report.assignment.job_id, " rank ", report.assignment.rank, " ",
                    Name(report.body));
  }
  return text;
}

}  // namespace muster
