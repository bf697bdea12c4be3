// A work handle whose answer is known at once: no-op groups, refused calls.
#pragma once

#include <memory>
#include <utility>

#include "worker/comm/communicator.h"

namespace muster {

class ReadyWork final : public Work {
 public:
  explicit ReadyWork(absl::Status status) : status_(std::move(status)) {}
  absl::Status Wait() override { return status_; }
  bool IsDone() override { return true; }

 private:
  const absl::Status status_;
};

inline WorkPtr MakeReadyWork(absl::Status status) {
  return std::make_shared<ReadyWork>(std::move(status));
}

}  // namespace muster
