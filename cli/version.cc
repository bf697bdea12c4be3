#include <iostream>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {

Command VersionCommand() {
  return {.name = "version",
          .help = "the version of this program",
          .options = {JsonOption()},
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
