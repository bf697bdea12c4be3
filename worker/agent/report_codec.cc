#include "worker/agent/report_codec.h"

#include <type_traits>
#include <utility>

#include "common/rpc/report_convert.h"
#include "worker/agent/convert.h"

namespace muster {
namespace {

using Body = decltype(NodeReport::report);

TrainerExited ExitedFrom(const v1::ExitedReport& exited) {
  return {.exit_code = exited.exit_code(),
          .signal = exited.signal(),
          .launch_error = exited.launch_error(),
          .last_log_lines = {exited.last_log_lines().begin(), exited.last_log_lines().end()},
          .pid = exited.pid(),
          .oom_killed = exited.oom_killed()};
}

TrainerProbed ProbedFrom(const v1::ProbeReport& probe, int64_t epoch) {
  TrainerProbed probed{.request = probe.request(),
                       .running = probe.running(),
                       .process_state = probe.process_state(),
                       .cpu_ms = probe.cpu_ms()};
  if (probe.has_reply()) probed.reply = FromProto(probe.reply(), probe, epoch);
  return probed;
}

// nullopt: there is none that is known here.
std::optional<Body> BodyOf(const v1::TrainerReport& report) {
  if (std::optional<TrainerToAgent> message = MessageOf(report)) {
    return std::visit(
        [](auto&& said) -> std::optional<Body> {
          using Message = std::decay_t<decltype(said)>;
          if constexpr (std::is_constructible_v<Body, Message>) {
            return Body(std::move(said));
          } else {
            return std::nullopt;
          }
        },
        *std::move(message));
  }
  switch (report.report_case()) {
    case v1::TrainerReport::kExited:
      return ExitedFrom(report.exited());
    case v1::TrainerReport::kLog:
      return NodeLogLines{{report.log().lines().begin(), report.log().lines().end()}};
    case v1::TrainerReport::kProbe:
      return ProbedFrom(report.probe(), report.epoch());
    case v1::TrainerReport::kDeviceCheck:
      return FromProto(report.device_check());
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string EncodeReport(const NodeReport& report) { return ToProto(report).SerializeAsString(); }

std::optional<NodeReport> DecodeReport(absl::string_view bytes) {
  v1::TrainerReport in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  std::optional<Body> body = BodyOf(in);
  if (!body) return std::nullopt;
  return NodeReport{.assignment = {in.worker(), in.job_id(), in.epoch()},
                    .rank = in.rank(),
                    .report = *std::move(body)};
}

}  // namespace muster
