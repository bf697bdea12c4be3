#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "cli/submit_spec.h"

namespace muster {
namespace {

int Submit(const Invocation& invocation) {
  const std::string& path = invocation.arguments[0];
  absl::StatusOr<LoadedSpec> loaded = LoadSpec(path, invocation.GetAll("--set"));
  if (!loaded.ok()) {
    PrintError(loaded.status().message());
    return kExitUsage;
  }
  Client client(invocation);
  return SubmitSpec(invocation, &client, *std::move(loaded), path, "");
}

}  // namespace

Command SubmitCommand() {
  return {
      .name = "submit",
      .arguments = "SPEC",
      .help = "queue a job on a cluster",
      .details =
          "Checks the spec whole (SPEC is a file, or - for standard input) and queues the job. "
          "Every fault is printed, one a line, with the field, its value and what would be "
          "right; a spec with faults starts nothing. Relative paths in it mean the working "
          "folder of this command.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = SubmitOptions(),
      .examples = {{"muster submit examples/demo.json --watch", "and follow the job to its end"},
                   {"muster submit spec.json --set optimizer.lr=1e-4 --set name=lower",
                    "with two fields replaced"},
                   {"JOB=$(muster submit spec.json --json | jq -r .job_id)", "for a script"}},
      .exits_as_job = true,
      .run = Submit};
}

}  // namespace muster
