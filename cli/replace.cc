#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int Replace(const Invocation& invocation) {
  const std::string& job_id = invocation.arguments[0];
  if (!invocation.Has("--rank")) {
    PrintError("--rank R is needed: which rank moves (muster topology shows them)");
    return kExitUsage;
  }
  const auto given = invocation.GetInt("--rank", 0, 0);
  if (!given.ok() || *given > std::numeric_limits<int>::max()) {
    PrintError(given.ok() ? "--rank: there are no so many ranks" : given.status().message());
    return kExitUsage;
  }
  const int rank = static_cast<int>(*given);
  Client client(invocation);
  const auto moved = client.ReplaceRank(job_id, rank, invocation.Get("--with"),
                                        invocation.Get("--reason", "requested by muster replace"));
  if (!moved.ok()) return ReportCallError(moved.status(), client);
  if (invocation.Has("--json")) {
    nlohmann::ordered_json json;
    json["job_id"] = job_id;
    json["rank"] = rank;
    json["from"] = moved->from();
    json["to"] = moved->to();
    PrintJson(json);
    return kExitDone;
  }
  std::cout << absl::StrCat("rank ", rank, " of ", job_id, " moves from ", moved->from(), " to ",
                            moved->to(), " at the end of a step (muster events ", job_id, ")\n");
  return kExitDone;
}

}  // namespace

Command ReplaceCommand() {
  return {
      .name = "replace",
      .arguments = "JOB",
      .help = "move a rank of a job to another worker",
      .details =
          "The rank's state goes to a spare of the job, to an idle worker, or to the one that "
          "is named, between two steps and without loss; its former worker is idle then. "
          "Answers when that is planned; events tell when it is done.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--rank", .value = "R", .help = "which rank"},
                  {.name = "--with", .value = "WORKER", .help = "where to; else any that is free"},
                  {.name = "--reason", .value = "TEXT", .help = "for the job's events"},
                  JsonOption(),
                  CoordinatorOption(),
                  TokenFileOption()},
      .examples = {{"muster replace job-1 --rank 3", "that worker is slow today"},
                   {"muster replace job-1 --rank 3 --with node-9/0", "to that worker"}},
      .run = Replace};
}

}  // namespace muster
