#include "common/recovery/buddies.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace muster {

std::vector<int> BuddiesOf(const std::vector<std::string>& nodes) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    ranks_of[nodes[rank]].push_back(static_cast<int>(rank));
  }
  std::vector<int> buddies(nodes.size(), -1);
  if (ranks_of.size() < 2) return buddies;

  // Ranks node by node in a circle: who stands as far on as the largest node is long is on another
  // node, for as long as that is at most half of the circle.
  std::vector<int> circle;
  std::vector<int> largest;
  for (const auto& [node, ranks] : ranks_of) {
    circle.insert(circle.end(), ranks.begin(), ranks.end());
    if (ranks.size() > largest.size()) largest = ranks;
  }
  if (2 * largest.size() <= circle.size()) {
    for (size_t i = 0; i < circle.size(); ++i) {
      buddies[circle[i]] = circle[(i + largest.size()) % circle.size()];
    }
    return buddies;
  }
  std::vector<int> others;
  for (const int rank : circle) {
    if (!std::binary_search(largest.begin(), largest.end(), rank)) others.push_back(rank);
  }
  for (size_t i = 0; i < largest.size(); ++i) buddies[largest[i]] = others[i % others.size()];
  for (size_t i = 0; i < others.size(); ++i) buddies[others[i]] = largest[i];
  return buddies;
}

}  // namespace muster
