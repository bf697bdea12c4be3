// A communicator's work that notes when it is waited for: for tests of the order of posts and
// waits.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker/comm/communicator.h"

namespace muster {

class LoggedWork final : public Work {
 public:
  // Each Wait appends `event`; `events` outlives the work.
  LoggedWork(std::vector<std::string>& events, std::string event, WorkPtr inner)
      : events_(events), event_(std::move(event)), inner_(std::move(inner)) {}
  absl::Status Wait() override {
    events_.push_back(event_);
    return inner_->Wait();
  }
  bool IsDone() override { return inner_->IsDone(); }

 private:
  std::vector<std::string>& events_;
  const std::string event_;
  const WorkPtr inner_;
};

}  // namespace muster
