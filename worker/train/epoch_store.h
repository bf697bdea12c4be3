// The rendezvous of one epoch, as a trainer asks its agent for it: keys of an epoch that is over
// are refused. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/comm/rendezvous_store.h"
#include "worker/train/control_client.h"

namespace muster {

class EpochStore final : public RendezvousStore {
 public:
  // `client` outlives it.
  EpochStore(ControlClient* client, int64_t epoch) : client_(client), epoch_(epoch) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> WaitPrefix(
      const std::string& prefix, int count, absl::Duration limit) override;

 private:
  ControlClient* const client_;
  const int64_t epoch_;
};

}  // namespace muster
