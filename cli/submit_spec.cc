#include "cli/submit_spec.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/absolute_paths.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "common/rpc/address.h"
#include "common/spec/supported.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// The coordinator's own verdict counts; these are found before a job waits in a queue for nothing.
void CheckForSubmit(const Client& client, LoadedSpec* loaded) {
  if (!loaded->problems.empty()) return;
  const absl::StatusOr<HostPort> address = ParseHostPort(client.address());
  // A coordinator on this machine means workers on it, most likely: then the files must be here.
  if (address.ok() && IsLoopback(address->host)) {
    CheckForRun(loaded);
  } else {
    loaded->problems = UnsupportedFeatures(loaded->spec);
  }
}

}  // namespace

std::vector<OptionSpec> SubmitOptions() {
  return {SetOption(),
          {.name = "--watch", .help = "follow it; exit with its code"},
          JsonOption(),
          CoordinatorOption(),
          TokenFileOption()};
}

int SubmitSpec(const Invocation& invocation, Client* client, LoadedSpec loaded,
               const std::string& what, const std::string& origin) {
  CheckForSubmit(*client, &loaded);
  if (!loaded.problems.empty()) {
    PrintProblems(what, loaded.problems);
    return kExitUsage;
  }
  if (const absl::Status made = MakePathsAbsolute(&loaded); !made.ok()) {
    PrintError(made.message());
    return kExitUsage;
  }
  const absl::StatusOr<v1::SubmitJobResponse> response = client->SubmitJob(loaded.json);
  if (!response.ok()) return ReportCallError(response.status(), *client);
  if (response->problems_size() > 0) {
    for (const v1::SpecProblem& problem : response->problems()) {
      loaded.problems.push_back({problem.field(), problem.value(), problem.message()});
    }
    PrintProblems(what, loaded.problems);
    return kExitUsage;
  }
  if (invocation.Has("--json")) {
    PrintJsonLine({{"job_id", response->job_id()}});
  } else {
    std::cout << absl::StrCat("submitted ", response->job_id(), origin, "\n") << std::flush;
  }
  if (!invocation.Has("--watch")) return kExitDone;
  return WatchJob(client, response->job_id(), invocation.Has("--json"));
}

}  // namespace muster
