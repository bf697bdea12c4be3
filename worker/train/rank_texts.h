// A text of every rank, on every rank: for what is told now and then, not for every step.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace muster {

// By rank of the group. Collective: two gathers, one of them as long as the longest text times the
// group's size.
absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& mine, Communicator& group,
                                                     c10::Device device);

}  // namespace muster
