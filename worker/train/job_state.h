// Everything that one rank holds for a job while it trains: built once an attempt, saved and loaded
// by checkpointing.h, advanced by train_step.h. One thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "common/control/messages.h"
#include "common/schedule/loss_scaler.h"
#include "common/schedule/lr_schedule.h"
#include "common/schedule/microbatches.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "common/topology/layer_assignment.h"
#include "worker/comm/communicator.h"
#include "worker/optim/optimizer.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/expert_state.h"
#include "worker/parallel/parallel_context.h"
#include "worker/parallel/rng.h"
#include "worker/provider/provider.h"
#include "worker/train/open_step.h"
#include "worker/train/trace_recorder.h"

namespace muster {

class Snapshotter;  // worker/snapshot/snapshotter.h
class StepRerun;    // step_rerun.h

// Where the job is; the same on every rank.
struct Progress {
  int64_t iteration = 0;  // completed
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  int64_t skipped_train_samples = 0;
  double floating_point_operations_so_far = 0;
};

struct JobState {
  JobSpec spec;
  ResolvedSpec sizes;
  int64_t train_iters = 0;
  c10::Device device = c10::kCPU;
  ParallelContext parallel;
  RngTracker rng;
  std::unique_ptr<ExpertState> experts = std::make_unique<ExpertState>();
  std::vector<std::unique_ptr<ModelChunk>> chunks;  // by virtual stage; one without them
  std::vector<ChunkLayers> layers;                  // what each chunk holds
  std::shared_ptr<ForwardStep> forward_step;
  // Null with skip_train.
  std::unique_ptr<DataParallel> ddp;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<LrSchedule> lr_schedule;
  std::optional<LossScaler> loss_scaler;
  std::optional<MicrobatchCalculator> microbatches;
  Progress progress;
  std::optional<OpenStep> open_step;         // from its first pass to its commit
  std::optional<TrainStepResult> last_step;  // the newest that was committed here
  // Last stage: the reports of the steps before it, oldest first, without what is one rank's own
  // (times, memory). All ranks of the stage keep them, since whoever sent them may be gone with its
  // agent before the coordinator has them.
  std::deque<StepMessage> recent_steps;
  AgreedResult agreed;
  int64_t epoch = 0;                     // in which it is trained, or was last
  int64_t committed_epoch = 0;           // in which its last step was committed (HeldState::epoch)
  int64_t consumed_valid_at_commit = 0;  // progress.consumed_valid_samples then
  std::shared_ptr<StepRerun> rerun;      // null until a training prepares it
  Snapshotter* snapshots = nullptr;      // copies this state behind training; null: nobody does
  TraceRecorder* trace = nullptr;        // records this step; null: nobody does
};

// Does this rank compute losses? Its last chunk ends the model then.
inline bool IsLastStage(const JobState& state) { return state.layers.back().loss; }
// Parameters of all chunks, in order.
std::vector<ParameterPtr> ParametersOf(const JobState& state);

at::ScalarType ParamsDtype(const JobSpec& spec);

// Model, wrapper, optimizer and schedules from a spec, in Megatron's order (reference 12.1);
// nothing is loaded yet. Collective over `world`.
absl::StatusOr<std::unique_ptr<JobState>> BuildJobState(const JobSpec& spec,
                                                        const ProviderRegistry& providers,
                                                        CommunicatorPtr world, c10::Device device);
// The same on the ranks of `world` that hold no state which they could go on with, while the others
// call JoinBuild: all that is not of the spec alone is filled in afterwards.
absl::StatusOr<std::unique_ptr<JobState>> BuildJobStateToFill(const JobSpec& spec,
                                                              const ProviderRegistry& providers,
                                                              CommunicatorPtr world,
                                                              c10::Device device);
absl::Status JoinBuild(const JobState& state, Communicator& world);

// Learning rate and weight decay of the schedule's position into every group.
void ApplySchedule(const LrSchedule& schedule, Optimizer& optimizer);

}  // namespace muster
