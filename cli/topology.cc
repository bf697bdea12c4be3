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

constexpr size_t kMostMembers = 64;  // printed of one name; --json has all

std::string TextOr(const Json& value, const std::string& fallback) {
  return value.is_string() ? value.get<std::string>() : fallback;
}

void PrintGroups(const Json& groups) {
  for (const auto& [name, table] : groups.items()) {
    std::cout << absl::StrCat(name, ": ");
    size_t shown = 0, members = 0;
    for (const Json& group : table) {
      if (shown > 0 && members + group.size() > kMostMembers) break;
      std::cout << group.dump();
      members += group.size();
      ++shown;
    }
    if (shown < table.size()) std::cout << " and " << table.size() - shown << " more";
    std::cout << "\n";
  }
}

void PrintTopology(const Json& json, bool placed) {
  std::vector<std::string> titles = {"RANK",      "TP", "CP",        "EP",
                                     "EXPERT_TP", "DP", "EXPERT_DP", "PP"};
  if (placed) titles.insert(titles.end(), {"WORKER", "NODE", "DEVICE"});
  std::vector<std::vector<std::string>> rows;
  for (const Json& rank : json["ranks"]) {
    std::vector<std::string> row;
    for (const char* name : {"rank", "tp", "cp", "ep", "expert_tp", "dp", "expert_dp", "pp"}) {
      row.push_back(absl::StrCat(rank[name].get<int>()));
    }
    if (placed) {
      for (const char* name : {"worker", "node", "device"}) row.push_back(TextOr(rank[name], "-"));
    }
    rows.push_back(std::move(row));
  }
  std::cout << FormatTable(titles, rows) << "\n";
  PrintGroups(json["groups"]);
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
  if (!is_spec && invocation.Has("--set")) {
    PrintError(absl::StrCat("--set changes a spec, and ", what,
                            " is none: give a file that is there, or leave --set out"));
    return kExitUsage;
  }
  const int code = is_spec ? OfSpec(invocation, &json) : OfJob(invocation, &json);
  if (code != kExitDone) return code;
  if (invocation.Has("--json")) {
    PrintJson(json);
  } else {
    PrintTopology(json, !is_spec);
  }
  return kExitDone;
}

}  // namespace

Command TopologyCommand() {
  return {.name = "topology",
          .arguments = "JOB|SPEC",
          .help = "ranks, their coordinates, places and groups, of a job or (offline) of a spec",
          .details =
              "Prints a line a rank: its coordinates in each parallel dimension and, of a job, its "
              "worker, node and device (- while it has none); then the ranks of every group, the "
              "first of them where there are many. What ends in .json or is a file here is taken "
              "for a spec.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {SetOption(), JsonOption(), CoordinatorOption(), TokenFileOption()},
          .examples = {{"muster topology job-1", "who is where"},
                       {"muster topology spec.json --json | jq -c .groups.tp",
                        "the tensor-parallel groups"}},
          .run = Topology};
}

}  // namespace muster
