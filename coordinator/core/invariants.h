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

// The same, and what must hold from one state to the next: no decision is taken back. An ended job
// stays as it ended; epochs, versions and what is applied never go back; directives, and within an
// epoch its ranks' workers and its unique ID, never change; what is aborted stays so; a cause that
// is not a symptom is kept as long as its incident; a lost agent stays lost, and reports that were
// taken stay taken.
class InvariantChecker {
 public:
  std::vector<std::string> Check(const Coordinator& coordinator);
  // One job alone.
  std::vector<std::string> Check(const Coordinator& coordinator, const JobMachine& job);

 private:
  struct Seen {
    JobState state = JobState::kSubmitted;
    int64_t version = 0, epoch = 0, iteration = 0, incident = 0, restarts = 0, applied = 0;
    std::vector<Directive> directives;
    std::vector<std::string> workers;  // of the epoch, by rank
    std::string unique_id;
    bool aborted = false;
    int exit_code = 0;
    std::string reason, cause;
    bool released = false;
  };
  struct SeenAgent {
    bool lost = false;
    int64_t reports_through = 0;
  };
  void Compare(const JobMachine& job, std::vector<std::string>* wrong);
  void CompareAgents(const Membership& members, std::vector<std::string>* wrong);
  std::map<std::string, Seen> seen_;
  std::map<std::string, SeenAgent> agents_;  // by incarnation; those that are still known
};

}  // namespace muster
