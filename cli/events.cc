#include <unistd.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow_list.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

std::string EventLine(const v1::Event& event) {
  std::string where;
  if (event.has_rank()) where = absl::StrCat(" rank ", event.rank());
  if (!event.worker().empty()) absl::StrAppend(&where, " ", event.worker());
  std::string line = absl::StrFormat("%s  %-20s%s", FormatTime(event.time()), event.kind(), where);
  if (!event.text().empty()) absl::StrAppend(&line, "  ", event.text());
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

int Events(const Invocation& invocation) {
  const absl::StatusOr<FollowListOptions> options = FollowListOptionsOf(invocation);
  if (!options.ok()) {
    PrintError(options.status().message());
    return kExitUsage;
  }
  Client client(invocation);
  const bool json = invocation.Has("--json");
  return FollowList<v1::GetEventsResponse, v1::Event>(
      &client, *options,
      [&](int64_t since, absl::Duration wait) {
        return client.GetEvents(invocation.arguments[0], since, wait);
      },
      &v1::GetEventsResponse::events,
      [json](const v1::Event& event) {
        if (json) {
          PrintJsonLine(ToJson(event));
        } else {
          std::cout << EventLine(event) << "\n";
        }
      });
}

}  // namespace

Command EventsCommand() {
  return {.name = "events",
          .arguments = "JOB",
          .help = "what happened to a job, in order",
          .details =
              "Prints time, kind, rank and worker (where one is concerned) and text of every event "
              "that the coordinator holds of the job, oldest first.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {FollowOption(), TailOption(), JsonLinesOption(), CoordinatorOption(),
                      TokenFileOption()},
          .examples = {{"muster events job-1 --tail 20", "the newest twenty"},
                       {"muster events job-1 -f", "and on, until the job has ended"}},
          .run = Events};
}

}  // namespace muster
