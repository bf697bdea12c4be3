// Who holds which rank after a failure (design 3): survivors keep theirs, a hit rank gets a new
// process on its own worker, else a spare, else an idle worker; with `elastic` the job goes on with
// fewer replicas of data parallelism, else it waits. Pure and deterministic.
//
// A worker whose trainer has already been started again in this incident and failed again is a
// suspect: it is taken only where no spare and no idle worker is left.
//
// Invariants of a plan that goes: each worker appears once, as a rank or as a spare; every survivor
// appears; the number of ranks is that of a replica times data_parallel_size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "coordinator/core/job_types.h"

namespace muster {

struct RecoveryWorker {
  std::string name, node;
  int device_index = 0;
};

struct RecoveryRank {
  // kAlive: its trainer lives and can go on. kEnding: its trainer was told to end, and that is
  // waited for. kVacant: a new process can be started on its worker. kGone: the worker is out of
  // use.
  enum class State { kAlive, kEnding, kVacant, kGone };
  RecoveryWorker worker;
  State state = State::kAlive;
  bool suspect = false;  // see above
};

struct RecoveryInput {
  const JobSpec* spec = nullptr;    // as it was submitted
  std::vector<RecoveryRank> ranks;  // of the epoch that is over
  // Spares of the job: warm or about to be; and workers that nobody holds.
  std::vector<RecoveryWorker> spares, idle;
};

struct RecoveryPlan {
  enum class Kind { kGo, kAwaitExits, kWaitForWorkers };
  struct Rank {
    std::string worker;
    RankSource source = RankSource::kSurvivor;
    int former_rank = -1;  // of a survivor
  };
  Kind kind = Kind::kGo;
  std::vector<Rank> ranks;          // by new rank
  std::vector<std::string> spares;  // those that stay, and survivors without a rank
  int64_t data_parallel_size = 0;
  // "rank 3 in place on n1/0", "needs 4 cpu workers and has 3: waits for 1 more"
  std::string reason;
  std::string change;  // "in_place", "spare", "shrink", "grow" or "reform": the largest of it
};

RecoveryPlan PlanRecovery(const RecoveryInput& input);

}  // namespace muster
