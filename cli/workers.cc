#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "common/rpc/convert.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int Workers(const Invocation& invocation) {
  Client client(invocation);
  const absl::StatusOr<v1::ListWorkersResponse> response = client.ListWorkers();
  if (!response.ok()) return ReportCallError(response.status(), client);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows;
  for (const v1::WorkerStatus& worker : response->workers()) {
    json.push_back(ToJson(worker));
    std::string state(absl::StripPrefix(v1::WorkerState_Name(worker.state()), "WORKER_STATE_"));
    if (worker.draining()) state += ", draining";
    rows.push_back({worker.description().name(), worker.node(), worker.description().device(),
                    worker.address(), state,
                    worker.job_id().empty() ? "idle"
                                            : absl::StrCat(worker.job_id(), " rank ", worker.rank(),
                                                           " ", worker.phase()),
                    FormatSeconds(absl::ToDoubleSeconds(FromProto(worker.since_last_heartbeat()))),
                    worker.reason()});
  }
  if (invocation.Has("--json")) {
    PrintJson(json);
  } else {
    std::cout << FormatTable(
        {"WORKER", "NODE", "DEVICE", "ADDRESS", "STATE", "WORK", "HEARD", "REASON"}, rows);
  }
  return kExitDone;
}

}  // namespace

Command WorkersCommand() {
  return {.name = "workers",
          .help = "the cluster's workers and what they do",
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .run = Workers};
}

}  // namespace muster
