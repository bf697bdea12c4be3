#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

void PrintStatus(const v1::JobStatus& job) {
  const auto line = [](absl::string_view name, absl::string_view value) {
    std::cout << absl::StrFormat("%-16s %s\n", name, value);
  };
  line("job", absl::StrCat(job.job_id(), " (", job.name(), ")"));
  line("state", StateName(job.state()));
  if (!job.progress().empty()) line("progress", job.progress());
  if (!job.reason().empty()) line("reason", job.reason());
  line("iteration", absl::StrCat(job.iteration(), " of ", job.train_iters()));
  line("consumed samples", absl::StrCat(job.consumed_samples()));
  line("FLOPs so far", absl::StrFormat("%.4g", job.num_floating_point_operations_so_far()));
  if (job.has_last()) {
    const v1::StepReport& step = job.last().step();
    line("lm loss",
         step.has_lm_loss() ? absl::StrFormat("%.6f", step.lm_loss()) : step.loss_text());
    line("speed",
         absl::StrFormat("%.1f ms a step, %s tokens/s, %.3g TFLOP/s a device", step.elapsed_ms(),
                         FormatCount(step.tokens_per_s()), step.tflops_per_device()));
  }
  for (const v1::Evaluation& evaluation : job.evaluations()) {
    line("evaluation",
         absl::StrFormat("iteration %d %s: loss %.6f, ppl %.4f", evaluation.iteration(),
                         evaluation.split(), evaluation.lm_loss(), evaluation.ppl()));
  }
  for (const v1::Checkpoint& checkpoint : job.checkpoints()) {
    line("checkpoint", absl::StrCat("iteration ", checkpoint.iteration(), ": ", checkpoint.path()));
  }
  line("epoch", absl::StrCat(job.epoch(), ", restarts ", job.restarts()));
  if (job.has_cause()) {
    line("cause", job.cause().text());
    for (const std::string& text : job.cause().last_log_lines()) line("", text);
  }
  if (job.ended()) line("exit code", absl::StrCat(job.exit_code()));
}

int Status(const Invocation& invocation) {
  Client client(invocation);
  const absl::StatusOr<v1::JobStatus> job = client.GetJob(invocation.arguments[0]);
  if (!job.ok()) return ReportCallError(job.status(), client);
  if (invocation.Has("--json")) {
    PrintJson(ToJson(*job));
  } else {
    PrintStatus(*job);
  }
  return kExitDone;
}

}  // namespace

Command StatusCommand() {
  return {.name = "status",
          .arguments = "JOB",
          .help = "one job: state, progress, evaluations, checkpoints, and why",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .run = Status};
}

}  // namespace muster
