#include <unistd.h>

#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "cli/spec_topology.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

void PrintTopology(const Json& json) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& rank : json["ranks"]) {
    std::vector<std::string> row;
    for (const char* name : {"rank", "tp", "cp", "ep", "expert_tp", "dp", "expert_dp", "pp"}) {
      row.push_back(absl::StrCat(rank[name].get<int>()));
    }
    row.push_back(rank["worker"].is_string() ? rank["worker"].get<std::string>() : "-");
    rows.push_back(std::move(row));
  }
  std::cout << FormatTable(
      {"RANK", "TP", "CP", "EP", "EXPERT_TP", "DP", "EXPERT_DP", "PP", "WORKER"}, rows);
  std::cout << "\n";
  for (const auto& [name, table] : json["groups"].items()) {
    std::cout << absl::StrCat(name, ": ");
    for (const Json& group : table) std::cout << group.dump();
    std::cout << "\n";
  }
}

// Of a spec, without a cluster.
int OfSpec(const Invocation& invocation, Json* json) {
  const std::optional<JobSpec> spec = LoadGoodSpec(invocation);
  if (!spec.has_value()) return kExitUsage;
  const absl::StatusOr<RankTopology> topology = RanksOf(*spec);
  if (!topology.ok()) {
    PrintError(topology.status().message());
    return kExitUsage;
  }
  *json = TopologyToJson(*topology);
  return kExitDone;
}

int OfJob(const Invocation& invocation, Json* json) {
  Client client(invocation);
  const absl::StatusOr<v1::GetTopologyResponse> response =
      client.GetTopology(invocation.arguments[0]);
  if (!response.ok()) return ReportCallError(response.status(), client);
  const absl::StatusOr<RankTopology> topology = RanksOf(ParseJobSpec(response->spec_json()).spec);
  if (!topology.ok()) {
    PrintError(topology.status().message());
    return kExitJobFailed;
  }
  *json = TopologyToJson(*topology);
  for (const v1::GetTopologyResponse::Rank& rank : response->ranks()) {
    if (rank.rank() < 0 || rank.rank() >= topology->world_size() || rank.worker().empty()) continue;
    Json& out = (*json)["ranks"][rank.rank()];
    out["worker"] = rank.worker();
    out["node"] = rank.node();
    out["device"] = rank.device();
  }
  return kExitDone;
}

int Topology(const Invocation& invocation) {
  const std::string& what = invocation.arguments[0];
  const bool is_spec =
      what == "-" || absl::EndsWith(what, ".json") || access(what.c_str(), R_OK) == 0;
  Json json;
  const int code = is_spec ? OfSpec(invocation, &json) : OfJob(invocation, &json);
  if (code != kExitDone) return code;
  if (invocation.Has("--json")) {
    PrintJson(json);
  } else {
    PrintTopology(json);
  }
  return kExitDone;
}

}  // namespace

Command TopologyCommand() {
  return {.name = "topology",
          .arguments = "JOB|SPEC",
          .help = "ranks, their coordinates and groups, of a job or (offline) of a spec",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {SetOption(), JsonOption(), CoordinatorOption(), TokenFileOption()},
          .run = Topology};
}

}  // namespace muster
