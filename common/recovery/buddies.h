// Which rank keeps a copy of which rank's snapshot: one on another node, so that the loss of a node
// leaves a copy. Pure.
#pragma once

#include <string>
#include <vector>

namespace muster {

// `nodes[r]`: the node of rank r. Answer: the rank that keeps r's copy, on another node; -1 for all
// when there is one node. Every rank keeps one copy; unless a node has more than half of the ranks:
// then its copies are spread evenly over the ranks of the others, which keep one more at most than
// the least loaded one. The same input gives the same answer.
std::vector<int> BuddiesOf(const std::vector<std::string>& nodes);

}  // namespace muster
