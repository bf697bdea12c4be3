// Random but mostly sensible events for a coordinator, from a seed: agents that register, connect,
// break, report and leave, people who submit and cancel. The same seed gives the same events as
// long as the coordinator answers the same.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"

namespace muster {

class RandomEvents {
 public:
  explicit RandomEvents(uint32_t seed) : random_(seed) {}

  // The next event, given what the coordinator is now.
  Event Next(const Coordinator& core);
  // Its answer, so that the agents know what they have reported.
  void Note(const Event& event, const Outcome& outcome);
  // All streams are gone: the coordinator was restarted.
  void ForgetStreams();

  int Pick(int below) { return static_cast<int>(random_() % below); }
  bool Chance(int percent) { return Pick(100) < percent; }

 private:
  struct Agent {
    RegisterAgent registration;
    StreamId stream = 0;
    int64_t sent = 0;  // batches
  };

  Event Register();
  Event Batch(const Coordinator& core, Agent* agent);
  ReportBody Report(const JobMachine& job, int rank);
  Event Submit();
  std::string SomeJob(const Coordinator& core);

  std::mt19937 random_;
  std::vector<Agent> agents_;
  int next_life_ = 1;
  StreamId next_stream_ = 1;
  WaitToken next_wait_ = 1;
};

}  // namespace muster
