#include <iostream>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {

Command VersionCommand() {
  return {.name = "version",
          .help = "the version of this program",
          .details =
              "Prints the version of this program; with --json also that of the protocol between "
              "agents and coordinator.",
          .options = {JsonOption()},
          .examples = {{"muster version --json", "for a script"}},
          .run = [](const Invocation& invocation) -> int {
            if (invocation.Has("--json")) {
              PrintJsonLine({{"version", MUSTER_VERSION}, {"protocol_version", 1}});
            } else {
              std::cout << "muster " << MUSTER_VERSION << "\n";
            }
            return kExitDone;
          }};
}

}  // namespace muster
