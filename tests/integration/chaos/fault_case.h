// A job whose faults a test chooses, on a cluster of its own, beside what it computes undisturbed.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/integration/chaos/unbroken_run.h"

namespace muster {

// The same for all, since they share their unbroken runs.
inline constexpr int kTrainIters = 100;
inline constexpr int kPassesOfAStep = 2;  // of a rank where dp = 2: four microbatches

class FaultCase {
 public:
  // The unbroken run is that of the spec as `change` leaves it. Of the job alone, spec() can still
  // be changed then.
  explicit FaultCase(const ChaosLayout& layout,
                     const nlohmann::json& change = nlohmann::json::object());

  // Submits.
  void Start();
  // And returns when so many steps are done.
  void StartAndReach(int64_t iteration);
  void SetPace(int ms) { muster::SetPace(chaos_.cluster().folder().path(), ms); }
  // Once, in the process that trains on this worker, in its nth training pass; see
  // unruly_forward_step.cc. Before Start.
  void SetFault(const std::string& kind, int node, int pass);

  nlohmann::json Status() { return chaos_.cluster().MusterJson({"status", job_}); }
  // Of this kind; empty: all.
  std::vector<nlohmann::json> Events(const std::string& kind = "");
  // The text of the newest of its kind once there are so many; with a failure, "" when they did not
  // come.
  std::string WaitForEvent(const std::string& kind, int count = 1);
  // `muster workers` of the one that a node has; of several, the first.
  nlohmann::json WorkerOf(int node);
  // `muster WORDS`, which is to succeed.
  Result Command(const std::vector<std::string>& words);

  // Losses may differ by so much, relatively; 0: not by a bit.
  void ExpectSameEnd(double tolerance = 0);

  ChaosCluster& chaos() { return chaos_; }
  nlohmann::json& spec() { return spec_; }
  const UnbrokenRun& unbroken() const { return unbroken_; }
  const std::string& job() const { return job_; }

 private:
  ChaosCluster chaos_;
  nlohmann::json spec_;
  UnbrokenRun unbroken_;
  std::string job_;
};

// What follows `name` in the text of an event: 7 of "steps_redone=7"; -1: there is no such name.
int64_t NumberAfter(const std::string& text, const std::string& name);
// The same of "no progress for 1.6s: ..."; infinite: there is none.
absl::Duration DurationAfter(const std::string& text, const std::string& name);
// What the job's status has learned of its steps.
struct StepLimit {
  absl::Duration limit, p99;
};
StepLimit LimitOfSteps(const nlohmann::json& status);
// When an event was written.
absl::Time TimeOf(const nlohmann::json& event);

}  // namespace muster
