#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/absolute_paths.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "cli/spec_file.h"
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

int Submit(const Invocation& invocation) {
  const std::string& path = invocation.arguments[0];
  absl::StatusOr<LoadedSpec> loaded = LoadSpec(path, invocation.GetAll("--set"));
  if (!loaded.ok()) {
    PrintError(loaded.status().message());
    return kExitUsage;
  }
  Client client(invocation);
  CheckForSubmit(client, &*loaded);
  if (!loaded->problems.empty()) {
    PrintProblems(path, loaded->problems);
    return kExitUsage;
  }
  if (const absl::Status made = MakePathsAbsolute(&*loaded); !made.ok()) {
    PrintError(made.message());
    return kExitUsage;
  }
  const absl::StatusOr<v1::SubmitJobResponse> response = client.SubmitJob(loaded->json);
  if (!response.ok()) return ReportCallError(response.status(), client);
  if (response->problems_size() > 0) {
    for (const v1::SpecProblem& problem : response->problems()) {
      loaded->problems.push_back({problem.field(), problem.value(), problem.message()});
    }
    PrintProblems(path, loaded->problems);
    return kExitUsage;
  }
  if (invocation.Has("--json")) {
    PrintJsonLine({{"job_id", response->job_id()}});
  } else {
    std::cout << absl::StrCat("submitted ", response->job_id(), "\n") << std::flush;
  }
  return invocation.Has("--watch") ? WatchJob(&client, response->job_id()) : kExitDone;
}

}  // namespace

Command SubmitCommand() {
  return {.name = "submit",
          .arguments = "SPEC",
          .help = "queue a job on a cluster",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {SetOption(),
                      {.name = "--watch", .help = "follow it; exit with its code"},
                      JsonOption(),
                      CoordinatorOption(),
                      TokenFileOption()},
          .run = Submit};
}

}  // namespace muster
