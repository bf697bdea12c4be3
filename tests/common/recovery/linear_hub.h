// Runs a LinearJob with two processes: coordinator, agent and communicator of linear_trainer.h in
// one loop. A process that ends is an epoch that is raised, and a new process on the same memory.
//
// What all have exchanged is given to one rank first, and to the other only when that one has gone
// on: so a death can fall between the two.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "linear_trainer.h"

namespace muster {

struct LinearRun {
  std::array<LinearState, kLinearRanks> final;
  std::map<int64_t, std::string> ledger;  // loss by step, as text of its bits
  int deaths = 0;
  int64_t agreements = 0;  // that returned anywhere
};

struct LinearHubOptions {
  int first = 0;  // the rank that an exchange's result is given to first
  // The other one is killed in the agreement of this step, when the first has its result.
  int64_t kill_second_in_agreement = 0;
  // Memory of a rank that dies is lost with it.
  bool lose_memory = false;
};

// INTERNAL: a trainer ended by itself; two reports of a step differ; nothing happens for too long.
absl::StatusOr<LinearRun> RunLinearJob(const LinearJob& job, const LinearHubOptions& options);

}  // namespace muster
