// One handle for several operations that were started together.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace muster {

class JoinedWork final : public Work {
 public:
  explicit JoinedWork(std::vector<WorkPtr> works) : works_(std::move(works)) {}
  absl::Status Wait() override {
    absl::Status status;
    for (const WorkPtr& work : works_) status.Update(work->Wait());
    return status;
  }
  bool IsDone() override {
    for (const WorkPtr& work : works_) {
      if (!work->IsDone()) return false;
    }
    return true;
  }

 private:
  const std::vector<WorkPtr> works_;
};

// `works` has at least one.
inline WorkPtr Join(std::vector<WorkPtr> works) {
  if (works.size() == 1) return std::move(works[0]);
  return std::make_shared<JoinedWork>(std::move(works));
}

}  // namespace muster
