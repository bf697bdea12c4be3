#include "common/topology/placement.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

struct Node {
  std::string name;
  std::vector<size_t> workers;  // by device index
};

std::vector<Node> NodesInOrder(const std::vector<PlacementWorker>& workers) {
  std::map<std::string, std::vector<size_t>> by_name;
  for (size_t i = 0; i < workers.size(); ++i) by_name[workers[i].node].push_back(i);
  std::vector<Node> nodes;
  for (auto& [name, members] : by_name) {
    std::sort(members.begin(), members.end(), [&](size_t a, size_t b) {
      if (workers[a].device_index != workers[b].device_index) {
        return workers[a].device_index < workers[b].device_index;
      }
      return NaturalLess(workers[a].name, workers[b].name);
    });
    nodes.push_back({name, std::move(members)});
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Node& a, const Node& b) { return NaturalLess(a.name, b.name); });
  return nodes;
}

// The fewest nodes that together hold `wanted` units, those with the most units first, but the
// smallest that will do in the last place, so that larger ones stay whole for other jobs. As
// indexes, sorted. `units[i]` is what node i holds. All nodes when they do not suffice.
std::vector<size_t> FewestNodes(const std::vector<size_t>& units, size_t wanted) {
  std::vector<size_t> order(units.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return units[a] > units[b]; });
  size_t held = 0, num_chosen = 0;
  while (num_chosen < order.size() && held < wanted) held += units[order[num_chosen++]];
  if (num_chosen > 0 && held >= wanted) {
    const size_t missing = wanted - (held - units[order[num_chosen - 1]]);
    size_t last = num_chosen - 1;
    for (size_t i = last + 1; i < order.size() && units[order[i]] >= missing; ++i) {
      if (units[order[i]] < units[order[last]]) last = i;
    }
    order[num_chosen - 1] = order[last];
  }
  order.resize(num_chosen);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

bool NaturalLess(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!IsDigit(a[i]) || !IsDigit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    auto number_at = [](const std::string& text, size_t* at) {
      while (*at < text.size() && text[*at] == '0') ++*at;  // leading zeros do not count
      const size_t begin = *at;
      while (*at < text.size() && IsDigit(text[*at])) ++*at;
      return text.substr(begin, *at - begin);
    };
    const std::string left = number_at(a, &i), right = number_at(b, &j);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // "n01" and "n1"
}

absl::StatusOr<Placement> PlaceRanks(const RankTopology& topology,
                                     const std::vector<PlacementWorker>& workers) {
  const size_t world = topology.world_size(), tp = topology.tp();
  if (workers.size() < world) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job needs ", world, " workers; ", workers.size(), " are free"));
  }
  const GroupTable& blocks = topology.groups().at("tp");
  const std::vector<Node> nodes = NodesInOrder(workers);
  std::vector<size_t> whole_blocks;  // that a node has room for
  for (const Node& node : nodes) whole_blocks.push_back(node.workers.size() / tp);

  Placement placement;
  placement.worker_of_rank.resize(world);
  size_t next_block = 0;
  std::vector<size_t> left_over(nodes.size());  // workers beside the whole blocks
  for (size_t i = 0; i < nodes.size(); ++i) left_over[i] = nodes[i].workers.size();
  for (const size_t i : FewestNodes(whole_blocks, blocks.size())) {
    const Node& node = nodes[i];
    size_t used = 0;
    while (next_block < blocks.size() && used + tp <= node.workers.size()) {
      for (int rank : blocks[next_block]) placement.worker_of_rank[rank] = node.workers[used++];
      ++next_block;
    }
    left_over[i] -= used;
  }
  if (next_block == blocks.size()) return placement;

  // Every node holds as many whole groups as it can; the others span nodes, as few as will do.
  placement.num_split_tensor_groups = static_cast<int>(blocks.size() - next_block);
  std::vector<size_t> rest;
  for (const size_t i : FewestNodes(left_over, (blocks.size() - next_block) * tp)) {
    const std::vector<size_t>& members = nodes[i].workers;
    rest.insert(rest.end(), members.end() - static_cast<int64_t>(left_over[i]), members.end());
  }
  for (size_t used = 0; next_block < blocks.size(); ++next_block) {
    for (int rank : blocks[next_block]) placement.worker_of_rank[rank] = rest[used++];
  }
  return placement;
}

}  // namespace muster
