#include <unistd.h>

#include <iostream>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/workers_table.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr int kMostInATable = 64;  // more are counted

int Workers(const Invocation& invocation) {
  Client client(invocation);
  const absl::StatusOr<v1::ListWorkersResponse> response = client.ListWorkers();
  if (!response.ok()) return ReportCallError(response.status(), client);
  if (invocation.Has("--json")) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const v1::WorkerStatus& worker : response->workers()) json.push_back(ToJson(worker));
    PrintJson(json);
    return kExitDone;
  }
  if (invocation.Has("--all") || response->workers_size() <= kMostInATable) {
    std::cout << WorkersTable(*response);
    return kExitDone;
  }
  const std::string summary = WorkersSummary(*response);
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  std::cout << (terminal ? CutLines(summary, TerminalColumns(STDOUT_FILENO)) : summary);
  return kExitDone;
}

}  // namespace

Command WorkersCommand() {
  return {.name = "workers",
          .help = "the cluster's workers and what they do",
          .details =
              "Prints a line a worker; of more than 64, the number of those in the same state with "
              "the same work, the rarest first, with the names of their nodes. HEARD is the time "
              "since the last sign of life.",
          .options = {{.name = "--all", .help = "a line a worker, however many there are"},
                      JsonOption(),
                      CoordinatorOption(),
                      TokenFileOption()},
          .examples = {{"muster workers --json | jq -r '.[] | select(.state == \"LOST\").worker'",
                        "the names of those that are lost"}},
          .run = Workers};
}

}  // namespace muster
