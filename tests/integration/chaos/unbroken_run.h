// A small GPT job that must compute the same numbers whatever happens to its processes, and the
// comparison with its unbroken run.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/integration/chaos/chaos_cluster.h"

namespace muster {

struct ChaosLayout {
  const char* name;
  int world_size;
  nlohmann::json parallel;         // fields of the section
  std::vector<int> slots_of_node;  // workers of each node, spares included
};
// Data parallel (plain, distributed optimizer), tensor, pipeline parallel, and 2 x 2; each with a
// node more than it needs.
const std::vector<ChaosLayout>& ChaosLayouts();

// Dropout is on: a recovery has to restore the random states, too. Some milliseconds a step.
nlohmann::json ChaosSpec(const ChaosLayout& layout, int train_iters);

// What each step has computed, in order of the ledger: a line of JSON with all digits, without what
// the clock and the attempt have to say.
std::vector<std::string> StepNumbers(Cluster& cluster, const std::string& job);
// The same lines, and each iteration once. `tolerance`: see ExpectEndsAsUnbroken.
void ExpectSameNumbers(const std::vector<std::string>& numbers,
                       const std::vector<std::string>& unbroken, double tolerance = 0);

// The numbers of a run that nothing happens to, and its evaluations.
struct UnbrokenRun {
  std::vector<std::string> numbers;
  nlohmann::json evaluations;
};
UnbrokenRun RunUnbroken(Cluster& cluster, const nlohmann::json& spec);
// The same, of this spec and this build of the trainer only once on this machine: many cases are
// compared with the same numbers.
UnbrokenRun UnbrokenOf(Cluster& cluster, const nlohmann::json& spec);

// The job's trainers do what the test wants of them (unruly_forward_step.cc); the agents allow it.
// `folder`: the cluster's.
void MakeUnruly(const std::string& folder, nlohmann::json* spec);
// From now on each pass of such a job takes so much longer.
void SetPace(const std::string& folder, int ms);
// Of a pass, in ms: a step of 20 ms and more; one in which people have time.
inline constexpr int kBriskPace = 10, kSlowPace = 100;

// The job has completed as `unbroken` did, all workers are idle and no trainer is left. With
// everything that may explain why not: events, logs, what was done. `tolerance`: losses and norms
// may differ by so much, relatively, as they do where sums are formed in another order; 0: by no
// bit.
void ExpectEndsAsUnbroken(ChaosCluster& chaos, const std::string& job, const UnbrokenRun& unbroken,
                          double tolerance = 0);

// Everything that may explain a failure.
std::string Report(ChaosCluster& chaos, const std::string& job);

}  // namespace muster
