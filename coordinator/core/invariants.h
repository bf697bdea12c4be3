// What must hold of a Coordinator after every event. Run by tests and by the simulator. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"

namespace muster {

// What is wrong with this state; empty: nothing.
std::vector<std::string> CheckInvariants(const Coordinator& coordinator);
// Those of one job alone, for when there are many.
std::vector<std::string> CheckInvariants(const Coordinator& coordinator, const JobMachine& job);

// The same, and what must hold from one state to the next: an ended job stays as it ended, epochs,
// versions and directive numbers never go back, a cause that is not a symptom is kept.
class InvariantChecker {
 public:
  std::vector<std::string> Check(const Coordinator& coordinator);
  // One job alone.
  std::vector<std::string> Check(const Coordinator& coordinator, const JobMachine& job);

 private:
  struct Seen {
    JobState state = JobState::kSubmitted;
    int64_t version = 0, epoch = 0, last_directive = 0, applied = 0;
    int exit_code = 0;
    std::string reason, cause;
    bool released = false;
  };
  void Compare(const JobMachine& job, std::vector<std::string>* wrong);
  std::map<std::string, Seen> seen_;
};

}  // namespace muster
