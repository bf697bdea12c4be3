// The model in fp16: losses and gradients are those of fp64 within fp16's rounding.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

struct Case {
  const char* name;
  TransformerConfig config;
  bool masked;  // attention that is not fused
};

TransformerConfig LlamaLike() {
  TransformerConfig config = TinyConfig();
  config.num_query_groups = 2;
  config.position_embedding = PositionEmbedding::kRope;
  config.normalization = Normalization::kRmsNorm;
  config.swiglu = true;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

TransformerConfig WithQkNorm(TransformerConfig config) {
  config.qk_layernorm = true;
  return config;
}

TEST(Fp16ModelTest, LossAndGradientsAreThoseOfFp64WithinRounding) {
  const std::vector<Case> cases = {{"gpt2", TinyConfig(), false},
                                   {"gpt2, explicit mask", TinyConfig(), true},
                                   {"llama", LlamaLike(), false},
                                   {"llama, qk norm", WithQkNorm(LlamaLike()), false}};
  constexpr double kLossScale = 4096;
  for (const Case& row : cases) {
    for (const at::ScalarType grad_type : {at::kFloat, at::kHalf}) {
      SCOPED_TRACE(std::string(row.name) + ", gradients in " + at::toString(grad_type));
      auto half = MakeModel(row.config, at::kHalf), exact = MakeModel(row.config, at::kDouble);
      CopyParameters(half->parameters(), exact->parameters());
      AttachMainGrads(half->parameters(), grad_type);
      AttachMainGrads(exact->parameters(), at::kDouble);
      Batch batch = RandomBatch(row.config, 2, 16, 5);
      if (row.masked) batch.attention_mask = at::ones({2, 1, 16, 16}, at::kBool).triu(1);
      const at::Tensor got = half->Forward(batch, {}), want = exact->Forward(batch, {});
      EXPECT_EQ(got.scalar_type(), at::kFloat);
      EXPECT_LE(MaxDifference(got, want), 1e-2);
      (got.mean() * kLossScale).backward();
      want.mean().backward();
      double norm = 0;
      for (const ParameterPtr& p : exact->parameters()) {
        norm += p->main_grad.square().sum().item<double>();
      }
      norm = std::sqrt(norm);
      for (size_t i = 0; i < half->parameters().size(); ++i) {
        SCOPED_TRACE(half->parameters()[i]->name);
        const at::Tensor g = half->parameters()[i]->main_grad.to(at::kDouble) / kLossScale;
        const at::Tensor w = exact->parameters()[i]->main_grad;
        // A key's bias has no gradient in theory.
        EXPECT_LE(MaxDifference(g, w), 2e-2 * std::max(w.abs().max().item<double>(), 1e-3 * norm));
      }
    }
  }
}

TEST(Fp16ModelTest, WeightGradientsInFp32DoNotOverflow) {
  const at::Tensor a = at::full({64, 3}, 300.0, at::kHalf), b = at::full({64, 5}, 300.0, at::kHalf);
  EXPECT_TRUE(GemmTN(a, b).isinf().all().item<bool>());  // 5.76e6 is beyond 65504
  Parameter weight;
  weight.data = at::zeros({3, 5}, at::kHalf);
  weight.main_grad = at::empty({3, 5}, at::kFloat);
  weight.AccumulateGradGemm(a, b);
  weight.AccumulateGradGemm(a, b);
  EXPECT_TRUE(at::equal(weight.main_grad, at::full({3, 5}, 2 * 64 * 300.0 * 300.0)));
}

}  // namespace
}  // namespace muster
