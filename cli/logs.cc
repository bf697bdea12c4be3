#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int Logs(const Invocation& invocation) {
  const absl::StatusOr<int64_t> rank = invocation.GetInt("--rank", -1, 0);
  if (!rank.ok()) {
    PrintError(rank.status().message());
    return kExitUsage;
  }
  std::optional<int> wanted;
  if (invocation.Has("--rank")) wanted = static_cast<int>(*rank);
  const bool follow = invocation.Has("--follow");
  if (follow) CountInterrupts();
  Client client(invocation);
  int64_t since = 0;
  while (NumInterrupts() == 0) {
    const absl::StatusOr<v1::ReadLogsResponse> response =
        client.ReadLogs(invocation.arguments[0], wanted, since,
                        follow ? absl::Milliseconds(300) : absl::ZeroDuration());
    if (!response.ok()) return ReportCallError(response.status(), client);
    if (response->oldest() > since && response->oldest() > 1 && since > 0) {
      PrintError("some lines were dropped; the workers' log files have them");
    }
    for (const v1::LogLine& line : response->lines()) {
      if (invocation.Has("--json")) {
        PrintJsonLine(ToJson(line));
      } else if (wanted) {
        std::cout << line.text() << "\n";
      } else {
        std::cout << absl::StrCat("[", line.rank(), "] ", line.text(), "\n");
      }
    }
    std::cout << std::flush;
    since = response->next();
    if (response->lines().empty() && (!follow || response->job_ended())) return kExitDone;
  }
  return kExitInterrupted;
}

}  // namespace

Command LogsCommand() {
  return {
      .name = "logs",
      .arguments = "JOB",
      .help = "what the job's trainers printed",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--rank", .value = "R", .help = "of this rank only"},
                  {.name = "--follow", .help = "go on until the job has ended", .short_name = "-f"},
                  JsonOption(),
                  CoordinatorOption(),
                  TokenFileOption()},
      .run = Logs};
}

}  // namespace muster
