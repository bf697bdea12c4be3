// The cluster's workers for people: each in a line, or counted where there are many. Pure.
#pragma once

#include <string>
#include <vector>

#include "muster/v1/membership.pb.h"

namespace muster {

std::string WorkersTable(const v1::ListWorkersResponse& workers);

// The workers of one state, job and phase are one line, with the names of their nodes.
std::string WorkersSummary(const v1::ListWorkersResponse& workers);

// "node-[000-511]", "a, b": names that differ in a number at their end are a range. Any order; at
// most `most` entries, then "and 12 more".
std::string CompressNames(std::vector<std::string> names, size_t most);

}  // namespace muster
