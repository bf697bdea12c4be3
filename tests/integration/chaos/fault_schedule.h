// What is done to a running cluster, and when: drawn from a seed, so that the same seed does the
// same again (the processes' own timing differs, of course). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster {

struct Fault {
  enum class Kind {
    kKillTrainer,
    kStopTrainer,      // SIGSTOP, then SIGCONT
    kKillAgent,        // its trainers leave with it; started again
    kStopAgent,        // SIGSTOP, then SIGCONT
    kKillNode,         // agent and trainers at once; started again
    kKillCoordinator,  // started again on the same folder
    kStopCoordinator,  // SIGSTOP, then SIGCONT
    kDrainNode,        // by a person, who takes that back
  };
  Kind kind = Kind::kKillTrainer;
  absl::Duration after;  // the fault before it, or the job's first step
  uint32_t target = 0;   // modulo the number of candidates
  absl::Duration lasts;  // until it goes on, or is started again
};

struct ScheduleOptions {
  uint32_t seed = 0;
  int num_faults = 6;
  bool agents = true;  // false: trainers and coordinator only (there is nobody to take over)
};

// A third of the faults comes at once with the one before, a third while it is being recovered
// from, the rest when the job has had time to go on.
std::vector<Fault> MakeSchedule(const ScheduleOptions& options);

// "after 120 ms: stop agent 3 for 800 ms"
std::string Describe(const Fault& fault);

}  // namespace muster
