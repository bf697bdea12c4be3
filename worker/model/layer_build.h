// What a layer's constructor is given, and how it makes its parameters. Parameters are drawn in
// fp32 under an explicit generator and then cast, in the order in which Megatron's modules register
// them.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"
#include "worker/model/transformer_config.h"
#include "worker/parallel/parameter.h"
#include "worker/parallel/rng.h"

namespace muster {

// This rank's place in the tensor-parallel group; comm is null when it is alone in it.
struct TensorParallel {
  Communicator* comm = nullptr;
  int rank = 0, size = 1;
};

struct LayerBuild {
  const TransformerConfig& config;
  TensorParallel tp;
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

// partition_dim -1: replicated over tp, drawn from the default region. Otherwise the dim of `shape`
// (the whole tensor's) that is split over tp: flagged tensor_model_parallel, drawn from the
// model-parallel region.
ParameterPtr MakeParameter(LayerBuild& build, std::string name, std::vector<int64_t> shape,
                           InitMethod init, int partition_dim = -1);

}  // namespace muster
