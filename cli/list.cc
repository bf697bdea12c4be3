#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int List(const Invocation& invocation) {
  Client client(invocation);
  const absl::StatusOr<v1::ListJobsResponse> response = client.ListJobs();
  if (!response.ok()) return ReportCallError(response.status(), client);
  if (invocation.Has("--json")) {
    nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
    for (const v1::JobStatus& job : response->jobs()) jobs.push_back(ToJson(job));
    PrintJson(jobs);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows;
  for (const v1::JobStatus& job : response->jobs()) {
    rows.push_back({job.job_id(), job.name(), StateName(job.state()),
                    absl::StrCat(job.iteration(), "/", job.train_iters()),
                    absl::StrCat(job.world_size()), FormatTime(job.submitted_at()), job.reason()});
  }
  std::cout << FormatTable({"JOB", "NAME", "STATE", "ITERATION", "RANKS", "SUBMITTED", "REASON"},
                           rows);
  return kExitDone;
}

}  // namespace

Command ListCommand() {
  return {.name = "list",
          .help = "all jobs",
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .run = List};
}

}  // namespace muster
