#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int Cancel(const Invocation& invocation) {
  if (invocation.Has("--save") && invocation.Has("--now")) {
    PrintError("--save and --now exclude each other: a checkpoint takes its time");
    return kExitUsage;
  }
  const v1::CancelMode mode = invocation.Has("--save")  ? v1::CANCEL_MODE_CHECKPOINT_AND_STOP
                              : invocation.Has("--now") ? v1::CANCEL_MODE_KILL
                                                        : v1::CANCEL_MODE_STOP;
  Client client(invocation);
  const absl::StatusOr<v1::JobStatus> job =
      client.CancelJob(invocation.arguments[0], mode, "requested by muster cancel");
  if (!job.ok()) return ReportCallError(job.status(), client);
  if (invocation.Has("--json")) {
    PrintJson(ToJson(*job));
  } else if (job->ended()) {
    std::cout << absl::StrCat(job->job_id(), " is ", StateName(job->state()), "\n");
  } else {
    std::cout << absl::StrCat(job->job_id(), " is ", StateName(job->state()),
                              " and will end at its next step boundary\n");
  }
  return kExitDone;
}

}  // namespace

Command CancelCommand() {
  return {.name = "cancel",
          .arguments = "JOB",
          .help = "end a job at its next step",
          .details =
              "All ranks stop at the same step boundary; a job that waits or forms ends at once. "
              "The job ends as CANCELLED, with exit code 130. A stronger form (--now) overtakes a "
              "weaker one, and repeating the command is harmless.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {{.name = "--save", .help = "write a checkpoint first"},
                      {.name = "--now", .help = "kill its trainers"},
                      JsonOption(),
                      CoordinatorOption(),
                      TokenFileOption()},
          .examples = {{"muster cancel job-1 --save", "stop with a checkpoint at the next step"},
                       {"muster cancel job-1 --now", "kill its trainers"}},
          .run = Cancel};
}

}  // namespace muster
