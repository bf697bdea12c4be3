#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow.h"

namespace muster {

Command WatchCommand() {
  return {.name = "watch",
          .arguments = "JOB",
          .help = "follow a job to its end; exit with its code",
          .details =
              "Shows the job's progress until it ends: one line that is drawn anew on a terminal, "
              "plain lines elsewhere; evaluations, checkpoints and waits that are overdue are "
              "lines of their own. While the coordinator is away the job trains on, and this "
              "command waits for up to a quarter of an hour until it is back. Ctrl-C ends the "
              "command and leaves the job alone.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {{.name = "--json",
                       .help = "print a JSON object a line: the records, as metrics does, and at "
                               "the end the job's status"},
                      CoordinatorOption(),
                      TokenFileOption()},
          .examples = {{"muster watch job-1", "follow a job"},
                       {"muster watch job-1 >progress.txt || echo failed", "in a script"}},
          .exits_as_job = true,
          .run = [](const Invocation& invocation) {
            Client client(invocation);
            return WatchJob(&client, invocation.arguments[0], invocation.Has("--json"));
          }};
}

}  // namespace muster
