// Texts between ranks: what a save or load uses to agree. Collective.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace muster {

// Every rank's text, in rank order, on every rank. `device` is the communicator's. Travels as
// int64, which every backend carries.
absl::StatusOr<std::vector<std::string>> ExchangeTexts(const std::string& text, at::Device device,
                                                       Communicator& world);

// Every rank's outcome and payload, of something that may take ranks very different times: the
// groups' own limits don't hold for it (worker/comm/long_wait.h). OK: the payloads in rank order;
// otherwise the error of the first rank that failed, with "rank R: " in front, the same on every
// rank.
absl::StatusOr<std::vector<std::string>> ExchangeOutcomes(const absl::StatusOr<std::string>& mine,
                                                          at::Device device, Communicator& world);

}  // namespace muster
