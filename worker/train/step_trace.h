// Traces steps of a job on this rank when a directive asks for it: compares the clocks, lets a
// recorder listen for the steps asked for, compares the clocks again, and sends what was recorded
// to the coordinator on a thread of its own, off the steps' path. All ranks act on the directive at
// the same step, so the collective calls here meet. A directive that comes while steps are recorded
// ends that trace with the steps it has. One thread, the one that trains.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/control/messages.h"
#include "worker/parallel/unit_hooks.h"
#include "worker/train/job_state.h"
#include "worker/train/timers.h"
#include "worker/train/trace_json.h"
#include "worker/train/trace_recorder.h"
#include "worker/train/trainer_host.h"

namespace muster {

class StepTrace {
 public:
  struct Options {
    JobState& state;  // its `trace` is set while steps are recorded
    Timers& timers;   // their scopes are recorded
    TrainerHost& host;
    int64_t epoch = 0;
    int64_t capacity = 1 << 18;  // events; some 30 MB while a trace is recorded
  };
  explicit StepTrace(Options options);
  // Gives up an upload that has not ended.
  ~StepTrace();

  // Records from the next step on. Collective.
  absl::Status Begin(const Directive& directive);
  // Around each step. EndStep is collective when it is the last one asked for.
  void BeginStep(int64_t iteration);
  absl::Status EndStep();
  // There will be no more steps. Collective while steps are recorded.
  absl::Status EndEarly();
  // Until everything recorded has been sent, or could not be.
  void AwaitUpload();

 private:
  // Takes the times of one chunk's layers.
  class LayerHooks;

  absl::Status End();
  void Listen(TraceRecorder* recorder);
  void Send(int64_t directive, const TraceHead& head,
            std::shared_ptr<const TraceRecorder> recorder);

  const Options options_;
  std::shared_ptr<TraceRecorder> recorder_;  // null: nothing is recorded
  std::vector<std::unique_ptr<LayerHooks>> hooks_;
  Directive directive_;
  TraceHead head_;
  ClockEstimate first_clock_;
  int64_t step_place_ = -1;
  std::atomic<bool> give_up_ = false;
  std::thread upload_;
};

}  // namespace muster
