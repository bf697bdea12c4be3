#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {

Command CheckpointCommand() {
  return {.name = "checkpoint",
          .arguments = "JOB",
          .help = "write a checkpoint at the next step",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .run = [](const Invocation& invocation) -> int {
            Client client(invocation);
            const std::string& job_id = invocation.arguments[0];
            const absl::StatusOr<int64_t> directive =
                client.RequestCheckpoint(job_id, "requested by muster checkpoint");
            if (!directive.ok()) return ReportCallError(directive.status(), client);
            if (invocation.Has("--json")) {
              PrintJsonLine({{"job_id", job_id}, {"directive", *directive}});
            } else {
              std::cout << absl::StrCat("directive ", *directive, ": all ranks of ", job_id,
                                        " checkpoint at the same step\n");
            }
            return kExitDone;
          }};
}

}  // namespace muster
