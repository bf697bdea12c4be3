// What a job will need and cost, before anything runs: `muster plan`. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

// Bytes are those of one rank's device: live tensors, as the allocator counts them while a training
// step runs (worker/model/tensor_memory.h; a step report's memory_bytes). Their sum is the peak of
// the built-in GPT, within a tenth (tests/worker/train/memory_test.cc). Not counted: evaluation,
// checkpoints, collectives' buffers, the process itself.
//   parameters   in the model's dtype
//   gradients    the accumulation buffers (fp32 where the spec reduces in fp32)
//   optimizer    moments, and fp32 main parameters for half-precision models
//   gathered     with fully sharded data parallelism the whole values and local gradients of the
//                units that are in use, and of the root
// What is sharded is cut over dp * cp / instances ranks, experts over expert dp / instances.
//   activations  the most that lives on top of these at a time: what every microbatch in flight
//                keeps between its forward and its backward pass (of partially checkpointed ones
//                and of those recomputed as a whole, as many as the schedule holds together), the
//                temporaries of the pass that runs,
//                rotary tables (activation_memory.h); or the optimizer's temporaries, if they are
//                more. Of a ramp-up the full batch counts. Experts are taken to be chosen evenly.
// On the host, beside the process: snapshots (recovery.snapshot_interval; design 3).
//   snapshots        three generations of what the rank updates
//   snapshot_copies  in a job on several nodes: as many of a rank of another node; more where the
//                    nodes have unequal numbers of ranks
struct RankPlan {
  int64_t parameters = 0;  // elements held
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  int64_t gathered_bytes = 0, activation_bytes = 0;
  int64_t snapshot_bytes = 0, snapshot_copy_bytes = 0;
  int64_t total_bytes() const {
    return parameter_bytes + gradient_bytes + optimizer_bytes + gathered_bytes + activation_bytes;
  }
};

struct JobPlan {
  int64_t total_parameters = 0;    // of the model; tied weights once
  std::vector<RankPlan> stages;    // by pipeline rank: all ranks of a stage are alike
  int64_t num_microbatches = 0;    // at the full global batch size
  double bubble_fraction = 0;      // idle share of the ideal time, (pp - 1) / (v m)
  double flops_per_iteration = 0;  // of one global batch, all ranks together
  // The stage that needs most.
  const RankPlan& largest() const;
};

// `spec` has no faults; INVALID_ARGUMENT where its pipeline split or batch cannot run after all.
absl::StatusOr<JobPlan> MakePlan(const JobSpec& spec, const ResolvedSpec& resolved);

}  // namespace muster
