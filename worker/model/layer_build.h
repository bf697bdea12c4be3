// What a layer's constructor is given, and how it makes its parameters. Parameters are drawn in
// fp32 under an explicit generator and then cast, in the order in which Megatron's modules register
// them.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/model/transformer_config.h"
#include "worker/ops/mappings.h"
#include "worker/ops/parallel_groups.h"
#include "worker/parallel/expert_state.h"
#include "worker/parallel/parameter.h"
#include "worker/parallel/rng.h"

namespace muster {

struct LayerBuild {
  const TransformerConfig& config;
  TensorParallel tp;
  ContextParallel cp;
  ExpertParallel ep;
  ExpertState* experts = nullptr;  // null: no MoE layers
  RngTracker& rng;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::vector<ParameterPtr>& parameters;  // every new parameter is appended
};

// How one parameter starts.
struct InitMethod {
  enum class Kind { kNormal, kZeros, kOnes } kind = Kind::kZeros;
  double std = 0;
  static InitMethod Normal(double std) { return {Kind::kNormal, std}; }
  static InitMethod Zeros() { return {Kind::kZeros, 0}; }
  static InitMethod Ones() { return {Kind::kOnes, 0}; }
};

// Of the weights whose outputs are added to the residual stream: smaller with depth (GPT-2).
double OutputInitStd(const TransformerConfig& config);

// How a parameter is split over tp: which dim of the whole tensor, in how many blocks
// (Parameter::partition_stride).
struct Partition {
  int dim = -1;  // -1: replicated
  int stride = 1;
  // Of one expert: split over expert tensor parallelism, drawn from the expert-parallel region,
  // and reduced over the experts' group where they have one.
  bool expert = false;
};

// `shape` is the whole tensor's. Replicated: drawn from the default region. Split: flagged
// tensor_model_parallel, this rank's shard drawn from the model-parallel region.
ParameterPtr MakeParameter(LayerBuild& build, std::string name, std::vector<int64_t> shape,
                           InitMethod init, Partition partition = {});

// Flags a replicated parameter that acts on rows between the blocks: with sequence parallelism each
// rank has the gradient of its slice only, and they are summed over tp. Null is allowed.
void MarkSequenceParallel(const LayerBuild& build, const ParameterPtr& parameter);

// The region of dropout between the blocks: equal on all tp ranks, except where they hold different
// slices of the sequence (reference 3).
at::Generator HiddenDropoutGenerator(const LayerBuild& build);

}  // namespace muster
