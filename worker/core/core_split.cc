#include "worker/core/core_split.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

using Cores = std::vector<Core>;

WorkerCores Bound(const Cores& cores) {
  WorkerCores result;
  std::set<int> nodes;
  for (const Core& core : cores) {
    result.cpus.push_back(core.cpu);
    nodes.insert(core.numa_node);
  }
  std::sort(result.cpus.begin(), result.cpus.end());
  if (nodes.size() == 1) result.numa_node = *nodes.begin();
  return result;
}

// `cores` (sorted) in `parts` pieces that differ by at most one unit, a unit being a physical core
// or, where there are too few of those, a thread. Fewer threads than parts: all get all.
std::vector<Cores> Cut(const Cores& cores, size_t parts) {
  std::vector<Cores> units;
  for (const Core& core : cores) {
    const bool same = !units.empty() && units.back().front().physical == core.physical &&
                      units.back().front().numa_node == core.numa_node;
    if (same) {
      units.back().push_back(core);
    } else {
      units.push_back({core});
    }
  }
  if (units.size() < parts) {
    units.clear();
    for (const Core& core : cores) units.push_back({core});
  }
  if (units.size() < parts) return std::vector<Cores>(parts, cores);
  std::vector<Cores> result(parts);
  for (size_t part = 0; part < parts; ++part) {
    const size_t end = (part + 1) * units.size() / parts;
    for (size_t i = part * units.size() / parts; i < end; ++i) {
      result[part].insert(result[part].end(), units[i].begin(), units[i].end());
    }
  }
  return result;
}

// The node of each worker: its device's where cores of it are allowed, else the one with the most
// cores for each worker so far.
std::vector<int> ChooseNodes(const std::map<int, Cores>& nodes,
                             const std::vector<int>& device_nodes) {
  std::map<int, size_t> taken;
  std::vector<int> chosen(device_nodes.size(), -1);
  for (size_t i = 0; i < device_nodes.size(); ++i) {
    if (!nodes.contains(device_nodes[i])) continue;
    chosen[i] = device_nodes[i];
    ++taken[chosen[i]];
  }
  for (int& node : chosen) {
    if (node >= 0) continue;
    for (const auto& [candidate, cores] : nodes) {
      // cores / (taken + 1), compared without division
      if (node < 0 ||
          cores.size() * (taken[node] + 1) > nodes.at(node).size() * (taken[candidate] + 1)) {
        node = candidate;
      }
    }
    ++taken[node];
  }
  return chosen;
}

}  // namespace

absl::StatusOr<BindMode> ParseBindMode(absl::string_view text) {
  if (text == "none") return BindMode::kNone;
  if (text == "cores") return BindMode::kCores;
  if (text == "numa") return BindMode::kNuma;
  return absl::InvalidArgumentError(absl::StrCat("--bind=", text, ": must be cores, numa or none"));
}

absl::StatusOr<std::vector<WorkerCores>> SplitCores(std::vector<Core> cores,
                                                    const std::vector<int>& device_nodes,
                                                    std::optional<BindMode> mode) {
  const size_t num_workers = device_nodes.size();
  std::vector<WorkerCores> result(num_workers);
  if (mode == BindMode::kCores && cores.size() < num_workers) {
    return absl::InvalidArgumentError(absl::StrCat("--bind=cores: there are ", cores.size(),
                                                   " cores for ", num_workers,
                                                   " workers; use --bind none, or fewer --slots"));
  }
  if (!mode) {
    mode = num_workers > 1 && cores.size() >= num_workers ? BindMode::kCores : BindMode::kNone;
  }
  if (*mode == BindMode::kNone || cores.empty()) return result;
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.numa_node, a.physical, a.cpu) < std::tie(b.numa_node, b.physical, b.cpu);
  });
  std::map<int, Cores> nodes;
  for (const Core& core : cores) nodes[core.numa_node].push_back(core);

  const bool devices_have_nodes = std::any_of(device_nodes.begin(), device_nodes.end(),
                                              [&](int node) { return nodes.contains(node); });
  if (*mode == BindMode::kCores && !devices_have_nodes) {
    const std::vector<Cores> parts = Cut(cores, num_workers);
    for (size_t i = 0; i < num_workers; ++i) result[i] = Bound(parts[i]);
    return result;
  }
  const std::vector<int> chosen = ChooseNodes(nodes, device_nodes);
  for (const auto& [node, node_cores] : nodes) {
    std::vector<size_t> workers;
    for (size_t i = 0; i < num_workers; ++i) {
      if (chosen[i] == node) workers.push_back(i);
    }
    const std::vector<Cores> parts = *mode == BindMode::kCores
                                         ? Cut(node_cores, workers.size())
                                         : std::vector<Cores>(workers.size(), node_cores);
    for (size_t k = 0; k < workers.size(); ++k) result[workers[k]] = Bound(parts[k]);
  }
  return result;
}

std::string CpuList(const std::vector<int>& cpus) {
  std::vector<std::string> ranges;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    ranges.push_back(first == last ? absl::StrCat(cpus[first])
                                   : absl::StrCat(cpus[first], "-", cpus[last]));
    first = last + 1;
  }
  return absl::StrJoin(ranges, ",");
}

std::optional<std::vector<int>> ParseCpuList(absl::string_view text) {
  constexpr int kMaxCpus = 1 << 16;
  std::vector<int> cpus;
  for (absl::string_view range : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) return std::nullopt;
    last = first;
    const bool is_range = ends.first.size() < range.size();
    if (is_range && !absl::SimpleAtoi(ends.second, &last)) return std::nullopt;
    if (first < 0 || last < first || last >= kMaxCpus) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace muster
