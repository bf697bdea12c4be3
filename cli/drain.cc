#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "common/spec/nearest_name.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

std::string NearestWorker(Client* client, const std::string& given) {
  const absl::StatusOr<v1::ListWorkersResponse> response = client->ListWorkers();
  if (!response.ok()) return "";
  std::vector<std::string> names;
  for (const v1::WorkerStatus& worker : response->workers()) {
    names.push_back(worker.description().name());
  }
  const std::string nearest = NearestName(given, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

int Drain(const Invocation& invocation) {
  Client client(invocation);
  const absl::StatusOr<v1::WorkerStatus> worker =
      client.DrainWorker(invocation.arguments[0], invocation.Has("--undo"));
  if (worker.status().code() == absl::StatusCode::kNotFound) {
    PrintError(absl::StrCat(worker.status().message(),
                            NearestWorker(&client, invocation.arguments[0]),
                            " (muster workers shows them)"));
    return kExitUsage;
  }
  if (!worker.ok()) return ReportCallError(worker.status(), client);
  if (invocation.Has("--json")) {
    PrintJson(ToJson(*worker));
  } else {
    std::cout << absl::StrCat(worker->description().name(),
                              worker->draining() ? " takes no new job" : " takes jobs again",
                              worker->job_id().empty() ? "" : "; it still runs ", worker->job_id(),
                              "\n");
  }
  return kExitDone;
}

}  // namespace

Command DrainCommand() {
  return {
      .name = "drain",
      .arguments = "WORKER",
      .help = "give a worker no new job",
      .details =
          "A job that runs on the worker goes on; no other is placed there until --undo. Safe to "
          "repeat.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--undo", .help = "let it take jobs again"},
                  JsonOption(),
                  CoordinatorOption(),
                  TokenFileOption()},
      .examples = {{"muster drain node-3/0", "before that device is worked on"},
                   {"muster drain node-3/0 --undo", "afterwards"}},
      .run = Drain};
}

}  // namespace muster
