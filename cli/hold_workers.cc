#include "cli/hold_workers.h"

#include <iostream>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/output.h"
#include "common/spec/nearest_name.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

std::string NearestOf(Client* client, const std::string& given) {
  const absl::StatusOr<v1::ListWorkersResponse> response = client->ListWorkers();
  if (!response.ok()) return "";
  std::set<std::string> names;
  for (const v1::WorkerStatus& worker : response->workers()) {
    names.insert(worker.description().name());
    names.insert(worker.node());
  }
  const std::string nearest =
      NearestName(given, std::vector<std::string>(names.begin(), names.end()));
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

std::string LineOf(const v1::WorkerStatus& worker) {
  std::string line = worker.description().name();
  if (!worker.quarantined().empty()) {
    absl::StrAppend(&line, " is quarantined: ", worker.quarantined());
  } else if (worker.draining()) {
    absl::StrAppend(&line, " takes no new rank");
  } else if (worker.cordoned()) {
    absl::StrAppend(&line, " is cordoned and takes no new rank");
  } else {
    absl::StrAppend(&line, " takes ranks again");
  }
  if (worker.job_id().empty()) return line;
  const std::string held = worker.rank() < 0
                               ? absl::StrCat("is a spare of ", worker.job_id())
                               : absl::StrCat("runs rank ", worker.rank(), " of ", worker.job_id());
  const bool leaves = worker.draining() || !worker.quarantined().empty();
  if (leaves && !worker.reason().empty()) {
    return absl::StrCat(line, "; it still ", held, "; ", worker.reason());
  }
  return absl::StrCat(line, leaves ? "; it still " : "; it ", held,
                      leaves && worker.rank() >= 0 ? ", which moves when there is a spare" : "");
}

}  // namespace

int PrintHeldWorkers(const Invocation& invocation, Client* client,
                     const absl::StatusOr<std::vector<v1::WorkerStatus>>& workers) {
  if (workers.status().code() == absl::StatusCode::kNotFound) {
    PrintError(
        absl::StrCat(workers.status().message(), NearestOf(client, invocation.arguments[0])));
    return kExitUsage;
  }
  if (!workers.ok()) return ReportCallError(workers.status(), *client);
  if (invocation.Has("--json")) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const v1::WorkerStatus& worker : *workers) json.push_back(ToJson(worker));
    // One worker that was named is one object.
    PrintJson(workers->size() == 1 ? json[0] : json);
    return kExitDone;
  }
  for (const v1::WorkerStatus& worker : *workers) std::cout << LineOf(worker) << "\n";
  return kExitDone;
}

}  // namespace muster
