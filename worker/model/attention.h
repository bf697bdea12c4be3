// Multi-head and grouped-query self-attention: fused qkv projection, optional norms of queries and
// keys, optional rotary positions, causal attention, output projection.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/model/core_attention.h"
#include "worker/model/cp_attention.h"
#include "worker/model/linear.h"
#include "worker/model/norm.h"
#include "worker/model/recompute.h"
#include "worker/model/rotary.h"

namespace muster {

class SelfAttention {
 public:
  // Of layer `number` of the model. `rotary`, of this rank's positions, may be null; shared by all
  // layers. `name`: "decoder.layers.N.self_attention".
  SelfAttention(LayerBuild& build, const std::string& name,
                std::shared_ptr<const RotaryTable> rotary, int64_t number = 0);

  // x (N, H) normed, or this rank's rows of it (sequence parallelism) -> the same shape, without
  // the output projection's bias (bias()). `mask`: Batch's, or undefined for plain causal. With
  // context parallelism the rows are this rank's tokens, and other ranks' keys are seen too.
  at::Tensor Forward(const at::Tensor& x, const TokenLayout& layout, const at::Tensor& mask,
                     bool training) const;
  const ParameterPtr& bias() const { return linear_proj_.bias(); }

 private:
  // Between the two projections.
  at::Tensor Attend(const at::Tensor& qkv, const TokenLayout& layout, const at::Tensor& mask,
                    bool training) const;
  // With norms and rotation.
  QkvHeads SplitHeads(const at::Tensor& qkv, const TokenLayout& layout) const;
  at::Tensor AttendOverContext(const at::Tensor& qkv, const TokenLayout& layout,
                               const at::Tensor& mask, bool training) const;
  at::Tensor AgainWhereKept(const Segment& core, const TensorList& inputs, double dropout,
                            bool training) const;

  AttentionShape shape_;
  ContextPlan context_;  // options: none yet
  double dropout_;
  at::Generator dropout_generator_;
  const bool recompute_core_;  // selective recomputation
  const std::vector<at::Generator> rng_regions_;
  std::shared_ptr<const RotaryTable> rotary_;
  RowParallelLinear linear_proj_;  // registered before linear_qkv, as in Megatron
  ColumnParallelLinear linear_qkv_;
  std::optional<Norm> q_layernorm_, k_layernorm_;
};

}  // namespace muster
