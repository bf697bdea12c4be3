// The experts that a rank holds (reference 14.5; Megatron: SequentialMLP, GroupedMLP): feed-forward
// blocks like Mlp, each for its own rows. With expert tensor parallelism a rank has a share of
// every inner width, and what comes out is its share of a sum.
//
//   y = p act(x W1^T + b1) W2^T + p b2,  p: the weight that the router gave the row's expert
//
// One expert after the other, or with moe_grouped_gemm all of them in one recorded operation
// (grouped_experts.h). An expert without rows takes part all the same, so that each of its weights
// gets a gradient in every backward pass.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/layer_build.h"
#include "worker/moe/token_dispatcher.h"
#include "worker/parallel/parameter.h"

namespace muster {

// F: this rank's part of the inner width; fc1 has 2 F rows with SwiGLU.
struct ExpertWeights {
  ParameterPtr fc1, fc2;            // (F, H), (H, F)
  ParameterPtr fc1_bias, fc2_bias;  // (F), (H); null without
};

class Experts {
 public:
  // `name`: "decoder.layers.N.mlp.experts". Experts are named by their number in the whole layer.
  Experts(LayerBuild& build, const std::string& name);

  // -> (R, H): the weighted outputs of rows.tokens, in their order.
  at::Tensor Forward(const Dispatched& rows) const;

 private:
  const bool swiglu_, grouped_, probs_on_input_;
  std::vector<ExpertWeights> experts_;
};

// Rows of x, (R, H), belong to the experts in turn, rows_per_expert of each; probs (R), or
// undefined for weights of 1. The sequential form.
at::Tensor SequentialExperts(const at::Tensor& x, const at::Tensor& probs,
                             const std::vector<int64_t>& rows_per_expert,
                             const std::vector<ExpertWeights>& experts, bool swiglu);

// rows (R, C) + scale (R) x bias (C); scale may be undefined: 1.
at::Tensor AddBiasOp(const at::Tensor& rows, const ParameterPtr& bias, const at::Tensor& scale);

// rows (R, C), each times its weight (R), in the rows' type.
at::Tensor Weighted(const at::Tensor& rows, const at::Tensor& weights);

}  // namespace muster
