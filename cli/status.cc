#include <unistd.h>

#include <iostream>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/status_text.h"
#include "cli/terminal.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr int kPlainColumns = 100;  // where there is no terminal

int Status(const Invocation& invocation) {
  Client client(invocation);
  std::string storage_trouble;
  const absl::StatusOr<v1::JobStatus> job = client.GetJob(
      invocation.arguments[0], 0, absl::ZeroDuration(), /*spec_json=*/nullptr, &storage_trouble);
  if (!job.ok()) return ReportCallError(job.status(), client);
  if (invocation.Has("--json")) {
    nlohmann::ordered_json json = ToJson(*job);
    json["storage_trouble"] = storage_trouble.empty() ? nlohmann::ordered_json(nullptr)
                                                      : nlohmann::ordered_json(storage_trouble);
    PrintJson(json);
    return kExitDone;
  }
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  std::cout << StatusText(*job, storage_trouble,
                          {.verbose = invocation.Has("--verbose"),
                           .columns = terminal ? TerminalColumns(STDOUT_FILENO) : kPlainColumns});
  return kExitDone;
}

}  // namespace

Command StatusCommand() {
  return {.name = "status",
          .arguments = "JOB",
          .help = "one job: state, progress, what it waits for, results, and why it ended",
          .details =
              "Prints at most one screen, however many ranks the job has. What an active job waits "
              "for at this moment comes with who is missing, how long that takes already and how "
              "long it may take; these limits are learned from the job's own history. Of a job "
              "that failed, the first cause is kept, with the last lines of the trainer that "
              "failed first.\n\n"
              "The exit code says whether the question could be answered, not how the job does: "
              "muster watch ends with the job's code.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {{.name = "--verbose",
                       .help = "leave nothing out: all who are missing, all results, all lines",
                       .short_name = "-v"},
                      JsonOption(),
                      CoordinatorOption(),
                      TokenFileOption()},
          .examples = {{"muster status job-1", "one screen"},
                       {"muster status job-1 --json | jq .wait.missing", "for a script"}},
          .run = Status};
}

}  // namespace muster
