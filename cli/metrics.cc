#include <iostream>

#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr char kColumns[] = "%9s %12s %12s %11s %10s %12s %9s\n";

void PrintRecord(const v1::MetricsRecord& record) {
  const v1::StepReport& step = record.step();
  std::cout << absl::StrFormat(
      kColumns, absl::StrFormat("%d", step.iteration()),
      step.has_lm_loss() ? absl::StrFormat("%.6f", step.lm_loss()) : step.loss_text(),
      step.has_grad_norm() ? absl::StrFormat("%.5f", step.grad_norm()) : "-",
      absl::StrFormat("%.4e", step.learning_rate()), absl::StrFormat("%.1f", step.elapsed_ms()),
      FormatCount(step.tokens_per_s()), step.skipped() ? "skipped" : "");
}

int Metrics(const Invocation& invocation) {
  const bool json = invocation.Has("--json"), follow = invocation.Has("--follow");
  if (follow) CountInterrupts();
  Client client(invocation);
  bool titled = json;
  int64_t since = 0;
  while (NumInterrupts() == 0) {
    const absl::StatusOr<v1::GetMetricsResponse> response = client.GetMetrics(
        invocation.arguments[0], since, follow ? absl::Milliseconds(300) : absl::ZeroDuration());
    if (!response.ok()) return ReportCallError(response.status(), client);
    if (!titled) {
      std::cout << absl::StrFormat(kColumns, "iteration", "lm loss", "grad norm", "lr", "ms",
                                   "tokens/s", "");
      titled = true;
    }
    for (const v1::MetricsRecord& record : response->records()) {
      if (json) {
        PrintJsonLine(ToJson(record));
      } else {
        PrintRecord(record);
      }
    }
    std::cout << std::flush;
    since = response->next();
    if (response->records().empty() && (!follow || response->job_ended())) return kExitDone;
  }
  return kExitInterrupted;
}

}  // namespace

Command MetricsCommand() {
  return {
      .name = "metrics",
      .arguments = "JOB",
      .help = "loss, gradient norm, speed of every iteration",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--follow", .help = "go on until the job has ended", .short_name = "-f"},
                  {.name = "--json", .help = "one JSON object a line"},
                  CoordinatorOption(),
                  TokenFileOption()},
      .run = Metrics};
}

}  // namespace muster
