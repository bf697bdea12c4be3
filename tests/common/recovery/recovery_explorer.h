// Visits every state that a RecoveryModel can reach, breadth first, so that the way to a broken
// rule is a shortest one.
#pragma once

#include <cstdint>
#include <string>

#include "recovery_model.h"

namespace muster {

struct Exploration {
  int64_t num_states = 0, num_transitions = 0, num_ends = 0;
  std::string broken;  // empty: nothing. Else the rule, and the way there
};

// Broken: a rule of the model; a state that is not the end and has no transition but failures; a
// transition that makes no progress. The first one found ends the search.
Exploration Explore(const ModelOptions& options);

}  // namespace muster
