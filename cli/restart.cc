#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "cli/submit_spec.h"

namespace muster {
namespace {

int Restart(const Invocation& invocation) {
  const std::string& job_id = invocation.arguments[0];
  Client client(invocation);
  std::string spec_json;
  const absl::StatusOr<v1::JobStatus> job =
      client.GetJob(job_id, 0, absl::ZeroDuration(), &spec_json);
  if (!job.ok()) return ReportCallError(job.status(), client);
  absl::StatusOr<LoadedSpec> loaded = LoadSpecText(spec_json, invocation.GetAll("--set"));
  if (!loaded.ok()) {
    PrintError(loaded.status().message());
    return kExitUsage;
  }
  return SubmitSpec(invocation, &client, *std::move(loaded), absl::StrCat("the spec of ", job_id),
                    absl::StrCat(" (the spec of ", job_id, " again)"));
}

}  // namespace

Command RestartCommand() {
  return {
      .name = "restart",
      .arguments = "JOB",
      .help = "submit a job's spec again, with changes if wanted",
      .details =
          "Takes the spec of a job that the coordinator holds, finished or not, with the fields "
          "of --set replaced, and queues it as a new job. The old job stays as it is. The new "
          "one goes on from a checkpoint if the spec's checkpoint.load says so, else it begins "
          "anew.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = SubmitOptions(),
      .examples = {{"muster restart job-1 --set optimizer.lr=1e-4 --watch",
                    "with another learning rate"},
                   {"muster restart job-1 --set checkpoint.load=/runs/a/ckpt",
                    "go on from the newest checkpoint in that folder"}},
      .exits_as_job = true,
      .run = Restart};
}

}  // namespace muster
