// The tensors of a job that checkpoints hold, as slices of the whole model's: the names do not
// depend on the layout, so any layout reads what any other wrote. Pure.
#pragma once

#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/train/job_state.h"

namespace muster {

enum class TensorUse {
  kSave,  // each element of the job once, but for replicas of data and tensor parallelism
  kLoad,  // whatever this rank holds
};
// The weights (kLoad: of a tied copy too, under the name of what it copies) and the routers' expert
// biases.
std::vector<NamedTensor> ModelTensors(const JobState& state, TensorUse use);
// The same of kLoad, but no more of a parameter than this rank updates: what is sure to be of the
// last commit, before others' parts are gathered.
std::vector<NamedTensor> OwnedModelTensors(const JobState& state);
// "optimizer.exp_avg.decoder.layers.0...": what this rank's optimizer holds of it.
std::vector<NamedTensor> OptimizerTensors(const JobState& state, TensorUse use);

}  // namespace muster
