#include <unistd.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// Why it waits or ended; of a job that is overdue, in what.
std::string ReasonOf(const v1::JobStatus& job) {
  if (job.has_wait() && job.wait().overdue()) {
    return absl::StrCat("overdue in ", job.wait().phase(), job.wait().missing().empty() ? "" : ": ",
                        job.wait().missing());
  }
  return job.reason();
}

void PrintTable(const v1::ListJobsResponse& response) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::JobStatus& job : response.jobs()) {
    rows.push_back({job.job_id(), job.name(), StateName(job.state()), absl::StrCat(job.priority()),
                    absl::StrCat(job.iteration(), "/", job.train_iters()),
                    absl::StrCat(job.world_size()), FormatTime(job.submitted_at()), ReasonOf(job)});
  }
  const std::string table = FormatTable(
      {"JOB", "NAME", "STATE", "PRIORITY", "ITERATION", "RANKS", "SUBMITTED", "REASON"}, rows);
  // A reason may be long: on a terminal each job keeps to its line.
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  std::cout << (terminal ? CutLines(table, TerminalColumns(STDOUT_FILENO)) : table);
}

int List(const Invocation& invocation) {
  Client client(invocation);
  const absl::StatusOr<v1::ListJobsResponse> response = client.ListJobs();
  if (!response.ok()) return ReportCallError(response.status(), client);
  if (!response->storage_trouble().empty()) {
    PrintError(absl::StrCat("the coordinator starts no job now: ", response->storage_trouble()));
  }
  if (!invocation.Has("--json")) {
    PrintTable(*response);
    return kExitDone;
  }
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
  for (const v1::JobStatus& job : response->jobs()) jobs.push_back(ToJson(job));
  PrintJson(jobs);
  return kExitDone;
}

}  // namespace

Command ListCommand() {
  return {
      .name = "list",
      .help = "all jobs: state, priority, iteration, what they wait for",
      .details =
          "Prints a line a job, in order of submission. A queued job says what it lacks; jobs of "
          "a higher resources.priority start first, then those that were submitted first. On a "
          "terminal, lines are cut at its edge.",
      .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
      .examples = {{"muster list", "all jobs that the coordinator holds"}},
      .run = List};
}

}  // namespace muster
