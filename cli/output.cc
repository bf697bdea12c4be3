#include "cli/output.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/terminal.h"
#include "common/rpc/convert.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity: null, as nlohmann writes them too.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string WorkerStateName(v1::WorkerState state) {
  std::string name = v1::WorkerState_Name(state);
  return std::string(absl::StripPrefix(name, "WORKER_STATE_"));
}

Json Milliseconds(const google::protobuf::Duration& duration) {
  return Number(absl::ToDoubleMilliseconds(FromProto(duration)));
}

Json ToJson(const v1::PhaseWait& wait) {
  return {{"phase", wait.phase()},
          {"elapsed_ms", Milliseconds(wait.elapsed())},
          {"limit_ms", Milliseconds(wait.limit())},
          {"overdue", wait.overdue()},
          {"missing", wait.missing()}};
}

Json ToJson(const v1::Recovery& recovery) {
  return {{"planned", recovery.planned()},
          {"kind", recovery.kind().empty() ? Json(nullptr) : Json(recovery.kind())},
          {"what", recovery.what()},
          {"elapsed_ms", Milliseconds(recovery.elapsed())},
          {"iteration", recovery.iteration()}};
}

Json Rfc3339(const google::protobuf::Timestamp& time) {
  return absl::FormatTime(absl::RFC3339_full, FromProto(time), absl::UTCTimeZone());
}

size_t Width(absl::string_view text) { return TextColumns(text); }

}  // namespace

std::string FormatTable(const std::vector<std::string>& titles,
                        const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::string& title : titles) widths.push_back(Width(title));
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  const auto add_row = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&text, row[i]);
      if (i + 1 < row.size()) text.append(widths[i] + 2 - Width(row[i]), ' ');
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
  };
  add_row(titles);
  for (const auto& row : rows) add_row(row);
  return text;
}

std::string CutLines(absl::string_view text, int columns) {
  std::string cut;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&cut, Shortened(line, columns), "\n");
  }
  return cut;
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 10) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return absl::StrCat(whole, " s");
  if (whole < 3600) return absl::StrCat(whole / 60, " min ", whole % 60, " s");
  return absl::StrCat(whole / 3600, " h ", whole % 3600 / 60, " min");
}

std::string FormatCount(double value) {
  const struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& unit : kUnits) {
    if (std::abs(value) >= unit.unit)
      return absl::StrFormat("%.3g%s", value / unit.unit, unit.name);
  }
  return absl::StrFormat("%.4g", value);
}

std::string FormatTime(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", FromProto(time), absl::LocalTimeZone());
}

std::string StateName(v1::JobState state) {
  const std::string name = v1::JobState_Name(state);
  return std::string(absl::StripPrefix(name, "JOB_STATE_"));
}

std::vector<std::pair<const char*, double>> SideLosses(const v1::StepReport& step) {
  using Step = v1::StepReport;
  static constexpr struct {
    const char* name;
    bool (Step::*has)() const;
    double (Step::*get)() const;
  } kAll[] = {
      {"load_balancing_loss", &Step::has_load_balancing_loss, &Step::load_balancing_loss},
      {"seq_load_balancing_loss", &Step::has_seq_load_balancing_loss,
       &Step::seq_load_balancing_loss},
      {"global_load_balancing_loss", &Step::has_global_load_balancing_loss,
       &Step::global_load_balancing_loss},
      {"z_loss", &Step::has_z_loss, &Step::z_loss},
  };
  std::vector<std::pair<const char*, double>> losses;
  for (const auto& loss : kAll) {
    if ((step.*loss.has)()) losses.emplace_back(loss.name, (step.*loss.get)());
  }
  return losses;
}

Json ToJson(const v1::MetricsRecord& record) {
  const v1::StepReport& step = record.step();
  Json json;
  json["iteration"] = step.iteration();
  json["consumed_samples"] = step.consumed_samples();
  json["lm_loss"] = step.has_lm_loss() ? Number(step.lm_loss()) : Json(nullptr);
  if (!step.loss_text().empty()) json["loss_text"] = step.loss_text();
  json["grad_norm"] = step.has_grad_norm() ? Number(step.grad_norm()) : Json(nullptr);
  if (step.has_num_zeros()) json["num_zeros"] = step.num_zeros();
  if (step.has_params_norm()) json["params_norm"] = Number(step.params_norm());
  for (const auto& [name, value] : SideLosses(step)) json[name] = Number(value);
  json["learning_rate"] = Number(step.learning_rate());
  json["loss_scale"] = Number(step.loss_scale());
  json["skipped"] = step.skipped();
  json["elapsed_ms"] = Number(step.elapsed_ms());
  json["tokens_per_s"] = Number(step.tokens_per_s());
  json["tflops_per_device"] = Number(step.tflops_per_device());
  json["epoch"] = record.epoch();
  json["global_batch_size"] = step.global_batch_size();
  json["num_floating_point_operations_so_far"] =
      Number(step.num_floating_point_operations_so_far());
  json["memory_bytes"] = step.memory_bytes();
  if (step.timers_ms_size() > 0) {
    std::map<std::string, double> timers(step.timers_ms().begin(), step.timers_ms().end());
    json["timers_ms"] = timers;
  }
  return json;
}

Json ToJson(const v1::JobStatus& job) {
  Json json;
  json["job_id"] = job.job_id();
  json["name"] = job.name();
  json["state"] = StateName(job.state());
  json["epoch"] = job.epoch();
  json["iteration"] = job.iteration();
  json["train_iters"] = job.train_iters();
  json["consumed_samples"] = job.consumed_samples();
  json["num_floating_point_operations_so_far"] = Number(job.num_floating_point_operations_so_far());
  json["last"] = job.has_last() ? ToJson(job.last()) : Json(nullptr);
  json["next_evaluation"] = job.next_evaluation() > 0 ? Json(job.next_evaluation()) : Json(nullptr);
  json["evaluations"] = Json::array();
  for (const v1::Evaluation& evaluation : job.evaluations()) {
    json["evaluations"].push_back({{"iteration", evaluation.iteration()},
                                   {"split", evaluation.split()},
                                   {"lm_loss", Number(evaluation.lm_loss())},
                                   {"ppl", Number(evaluation.ppl())},
                                   {"final", evaluation.final()}});
  }
  json["checkpoints"] = Json::array();
  for (const v1::Checkpoint& checkpoint : job.checkpoints()) {
    json["checkpoints"].push_back(
        {{"iteration", checkpoint.iteration()}, {"path", checkpoint.path()}});
  }
  json["restarts"] = job.restarts();
  json["steps_redone"] = job.steps_redone();
  json["recovery_seconds"] = Number(job.recovery_seconds());
  json["recovery"] = job.has_recovery() ? ToJson(job.recovery()) : Json(nullptr);
  json["spares"] = std::vector<std::string>(job.spares().begin(), job.spares().end());
  json["stragglers"] = Json::array();
  for (const v1::Straggler& slow : job.stragglers()) {
    json["stragglers"].push_back(
        {{"rank", slow.rank()}, {"worker", slow.worker()}, {"cause", slow.cause()}});
  }
  json["held_back"] = Json::array();
  for (const v1::HeldWorker& held : job.held_back()) {
    json["held_back"].push_back({{"worker", held.worker()}, {"why", held.why()}});
  }
  json["exit_code"] = job.ended() ? Json(job.exit_code()) : Json(nullptr);
  json["reason"] = job.reason();
  json["world_size"] = job.world_size();
  json["priority"] = job.priority();
  json["cancelling"] = job.cancelling();
  json["workers_released"] = job.workers_released();
  json["wait"] = job.has_wait() ? ToJson(job.wait()) : Json(nullptr);
  json["phase_limits"] = Json::array();
  for (const v1::PhaseLimit& limit : job.phase_limits()) {
    json["phase_limits"].push_back(
        {{"phase", limit.phase()},
         {"limit_ms", Milliseconds(limit.limit())},
         {"longest_ms", limit.has_longest() ? Milliseconds(limit.longest()) : Json(nullptr)},
         {"samples", limit.samples()}});
    if (limit.has_p99()) json["phase_limits"].back()["p99_ms"] = Milliseconds(limit.p99());
  }
  if (!job.progress().empty()) json["progress"] = job.progress();
  if (job.has_cause()) {
    const v1::FailureCause& cause = job.cause();
    Json& out = json["cause"];
    out["text"] = cause.text();
    if (!cause.kind().empty()) out["kind"] = cause.kind();
    if (cause.has_rank()) out["rank"] = cause.rank();
    out["worker"] = cause.worker();
    out["node"] = cause.node();
    if (cause.has_exit_code()) out["exit_code"] = cause.exit_code();
    if (cause.has_signal()) out["signal"] = cause.signal();
    out["iteration"] = cause.iteration();
    out["epoch"] = cause.epoch();
    if (cause.has_time()) out["time"] = Rfc3339(cause.time());
    out["last_log_lines"] =
        std::vector<std::string>(cause.last_log_lines().begin(), cause.last_log_lines().end());
  }
  if (job.has_submitted_at()) json["submitted_at"] = Rfc3339(job.submitted_at());
  if (job.has_started_at()) json["started_at"] = Rfc3339(job.started_at());
  if (job.has_ended_at()) json["ended_at"] = Rfc3339(job.ended_at());
  return json;
}

Json ToJson(const v1::WorkerStatus& worker) {
  Json json;
  json["worker"] = worker.description().name();
  json["node"] = worker.node();
  json["device"] = worker.description().device();
  json["address"] = worker.address();
  json["state"] = WorkerStateName(worker.state());
  json["draining"] = worker.draining();
  json["cordoned"] = worker.cordoned();
  json["quarantined"] = worker.quarantined().empty() ? Json(nullptr) : Json(worker.quarantined());
  json["job_id"] = worker.job_id().empty() ? Json(nullptr) : Json(worker.job_id());
  json["rank"] = worker.job_id().empty() ? Json(nullptr) : Json(worker.rank());
  json["epoch"] = worker.job_id().empty() ? Json(nullptr) : Json(worker.epoch());
  json["phase"] = worker.phase();
  json["since_last_heartbeat_ms"] =
      absl::ToDoubleMilliseconds(FromProto(worker.since_last_heartbeat()));
  json["version"] = worker.version();
  json["reason"] = worker.reason();
  return json;
}

Json ToJson(const v1::Event& event) {
  Json json;
  json["index"] = event.index();
  json["time"] = Rfc3339(event.time());
  json["kind"] = event.kind();
  json["text"] = event.text();
  json["epoch"] = event.epoch();
  if (event.has_rank()) json["rank"] = event.rank();
  if (!event.worker().empty()) json["worker"] = event.worker();
  return json;
}

Json ToJson(const v1::LogLine& line) {
  Json json;
  json["index"] = line.index();
  json["rank"] = line.rank();
  json["epoch"] = line.epoch();
  json["worker"] = line.worker();
  json["time"] = Rfc3339(line.time());
  json["text"] = line.text();
  return json;
}

void PrintJson(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
}

void PrintJsonLine(const Json& json) {
  std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
}

void PrintError(absl::string_view text) {
  std::cerr << absl::StrCat("muster: ", text, "\n") << std::flush;
}

}  // namespace muster
