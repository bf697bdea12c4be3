// checkpoint and evaluate: directives that all ranks act on at the same step.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using RequestCall = absl::StatusOr<int64_t> (Client::*)(const std::string& job_id,
                                                        const std::string& reason);

Command RequestCommand(const std::string& name, const std::string& help, const std::string& details,
                       RequestCall call) {
  return {.name = name,
          .arguments = "JOB",
          .help = help,
          .details = details,
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .examples = {{absl::StrCat("muster ", name, " job-1"), "ask for it now"}},
          .run = [name, call](const Invocation& invocation) -> int {
            Client client(invocation);
            const std::string& job_id = invocation.arguments[0];
            const absl::StatusOr<int64_t> directive =
                (client.*call)(job_id, absl::StrCat("requested by muster ", name));
            if (!directive.ok()) return ReportCallError(directive.status(), client);
            if (invocation.Has("--json")) {
              PrintJsonLine({{"job_id", job_id}, {"directive", *directive}});
            } else {
              std::cout << absl::StrCat("directive ", *directive, ": all ranks of ", job_id, " ",
                                        name, " at the same step\n");
            }
            return kExitDone;
          }};
}

}  // namespace

Command CheckpointCommand() {
  return RequestCommand(
      "checkpoint", "write a checkpoint at the next step",
      "Asks all ranks of a training job for a checkpoint at the same step "
      "boundary, beside those of its schedule. Does not wait for it: muster watch "
      "and muster events show when it is there. Fails where the spec has no "
      "checkpoint.save.",
      &Client::RequestCheckpoint);
}

Command EvaluateCommand() {
  return RequestCommand(
      "evaluate", "evaluate at the next step",
      "Asks all ranks of a training job for an evaluation at the same step "
      "boundary, beside those of its schedule. Does not wait for it: muster watch "
      "and muster status show the result.",
      &Client::RequestEvaluation);
}

}  // namespace muster
