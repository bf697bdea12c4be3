#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow.h"

namespace muster {

Command WatchCommand() {
  return {.name = "watch",
          .arguments = "JOB",
          .help = "follow a job to its end; exit with its code",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {CoordinatorOption(), TokenFileOption()},
          .run = [](const Invocation& invocation) {
            Client client(invocation);
            return WatchJob(&client, invocation.arguments[0]);
          }};
}

}  // namespace muster
