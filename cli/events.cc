#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int Events(const Invocation& invocation) {
  const bool follow = invocation.Has("--follow");
  if (follow) CountInterrupts();
  Client client(invocation);
  int64_t since = 0;
  while (NumInterrupts() == 0) {
    const absl::StatusOr<v1::GetEventsResponse> response = client.GetEvents(
        invocation.arguments[0], since, follow ? absl::Milliseconds(300) : absl::ZeroDuration());
    if (!response.ok()) return ReportCallError(response.status(), client);
    for (const v1::Event& event : response->events()) {
      if (invocation.Has("--json")) {
        PrintJsonLine(ToJson(event));
        continue;
      }
      std::string where;
      if (event.has_rank()) where = absl::StrCat(" rank ", event.rank());
      if (!event.worker().empty()) absl::StrAppend(&where, " ", event.worker());
      std::cout << absl::StrFormat("%s  %-20s%s%s%s\n", FormatTime(event.time()), event.kind(),
                                   where, event.text().empty() ? "" : "  ", event.text());
    }
    std::cout << std::flush;
    since = response->next();
    if (response->events().empty() && (!follow || response->job_ended())) return kExitDone;
  }
  return kExitInterrupted;
}

}  // namespace

Command EventsCommand() {
  return {
      .name = "events",
      .arguments = "JOB",
      .help = "what happened to a job, in order",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--follow", .help = "go on until the job has ended", .short_name = "-f"},
                  JsonOption(),
                  CoordinatorOption(),
                  TokenFileOption()},
      .run = Events};
}

}  // namespace muster
