#include <iostream>

#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow_list.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr char kColumns[] = "%9s %12s %12s %11s %10s %12s %9s%s\n";

void PrintRecord(const v1::MetricsRecord& record) {
  const v1::StepReport& step = record.step();
  std::string side_losses;  // not a column: few models have any
  for (const auto& [name, value] : SideLosses(step))
    absl::StrAppendFormat(&side_losses, "  %s %.5f", name, value);
  std::cout << absl::StrFormat(
      kColumns, absl::StrFormat("%d", step.iteration()),
      step.has_lm_loss() ? absl::StrFormat("%.6f", step.lm_loss()) : step.loss_text(),
      step.has_grad_norm() ? absl::StrFormat("%.5f", step.grad_norm()) : "-",
      absl::StrFormat("%.4e", step.learning_rate()), absl::StrFormat("%.1f", step.elapsed_ms()),
      FormatCount(step.tokens_per_s()), step.skipped() ? "skipped" : "", side_losses);
}

int Metrics(const Invocation& invocation) {
  const absl::StatusOr<FollowListOptions> options = FollowListOptionsOf(invocation);
  if (!options.ok()) {
    PrintError(options.status().message());
    return kExitUsage;
  }
  Client client(invocation);
  const bool json = invocation.Has("--json");
  bool titled = json;
  return FollowList<v1::GetMetricsResponse, v1::MetricsRecord>(
      &client, *options,
      [&](int64_t since, absl::Duration wait) {
        auto response = client.GetMetrics(invocation.arguments[0], since, wait);
        if (response.ok() && !titled) {
          std::cout << absl::StrFormat(kColumns, "iteration", "lm loss", "grad norm", "lr", "ms",
                                       "tokens/s", "", "");
          titled = true;
        }
        return response;
      },
      &v1::GetMetricsResponse::records,
      [json](const v1::MetricsRecord& record) {
        if (json) {
          PrintJsonLine(ToJson(record));
        } else {
          PrintRecord(record);
        }
      });
}

}  // namespace

Command MetricsCommand() {
  return {
      .name = "metrics",
      .arguments = "JOB",
      .help = "loss, gradient norm, speed of every iteration",
      .details =
          "Prints a line an iteration. An iteration that was done again after a recovery appears "
          "once, with its last values. With --json, numbers have all their digits.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {FollowOption(), TailOption(), JsonLinesOption(), CoordinatorOption(),
                  TokenFileOption()},
      .examples = {{"muster metrics job-1 --json >curve.jsonl", "the whole loss curve"}},
      .run = Metrics};
}

}  // namespace muster
