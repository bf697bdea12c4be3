// Bytes of a rank that live from step to step: parameters, gradients, optimizer state, and what
// fully sharded data parallelism lends to its units. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "common/topology/layer_assignment.h"

namespace muster {

int64_t ParameterBytes(const TrainingSpec& training);  // of an element

struct StateMemory {
  int64_t parameters = 0;  // elements held
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  // What this rank updates: its part of the parameters, and the optimizer's state. What a snapshot
  // of it holds (worker/train/live_state.h).
  int64_t updated_bytes = 0;
  // Gathered values and local gradients of units and root (worker/parallel/fsdp.h). Their memory is
  // kept from step to step.
  int64_t gathered_bytes = 0;
};
// Of the rank of a pipeline stage with these chunks that holds most.
StateMemory StageState(const JobSpec& spec, const ResolvedSpec& resolved,
                       const std::vector<ChunkLayers>& chunks);

// The most that the optimizer's step needs on top.
int64_t OptimizerTemporaries(const JobSpec& spec, const ResolvedSpec& resolved,
                             const std::vector<ChunkLayers>& chunks);

}  // namespace muster
