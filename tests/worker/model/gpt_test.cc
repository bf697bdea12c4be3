// What the GPT promises whatever its numbers are: causality, repeatable dropout, stages that join,
// initialisation, names.

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test_support.h"

namespace muster {
namespace {

at::Tensor Logits(GptModel& model, Batch batch) {
  batch.labels = at::Tensor();
  return model.Forward(batch, {}).detach();
}

TEST(GptTest, FutureTokensDoNotChangePastLogits) {
  for (const bool explicit_mask : {false, true}) {
    SCOPED_TRACE(explicit_mask);
    const TransformerConfig config = TinyConfig();
    auto model = MakeModel(config, at::kFloat);
    Batch batch = RandomBatch(config, 2, 12, 5);
    if (explicit_mask) batch.attention_mask = at::ones({2, 1, 12, 12}, at::kBool).triu(1);
    const at::Tensor before = Logits(*model, batch);
    batch.tokens = batch.tokens.clone();
    batch.tokens.narrow(1, 7, 5).fill_(3);
    const at::Tensor after = Logits(*model, batch);
    EXPECT_EQ(MaxDifference(before.narrow(1, 0, 7), after.narrow(1, 0, 7)), 0);
    EXPECT_GT(MaxDifference(before.narrow(1, 7, 5), after.narrow(1, 7, 5)), 1e-4);
  }
}

TEST(GptTest, ExplicitMaskCutsDocumentsApart) {
  const TransformerConfig config = TinyConfig();
  auto model = MakeModel(config, at::kDouble);
  Batch batch = RandomBatch(config, 1, 12, 5);
  // Two documents of 6 tokens, positions from 0 each.
  at::Tensor mask = at::ones({1, 1, 12, 12}, at::kBool).triu(1);
  mask.narrow(2, 6, 6).narrow(3, 0, 6).fill_(true);
  batch.attention_mask = mask;
  batch.position_ids = at::arange(12, at::kLong).remainder(6).view({1, 12});
  const at::Tensor joined = Logits(*model, batch);
  Batch second;
  second.tokens = batch.tokens.narrow(1, 6, 6).contiguous();
  second.position_ids = at::arange(6, at::kLong).view({1, 6});
  EXPECT_LE(MaxDifference(joined.narrow(1, 6, 6), Logits(*model, second)), 1e-12);
}

TEST(GptTest, DropoutRepeatsFromTheSeedAndIsOffInEvaluation) {
  TransformerConfig config = TinyConfig();
  config.attention_dropout = config.hidden_dropout = 0.2;
  const Batch batch = RandomBatch(config, 2, 8, 5);
  auto first = MakeModel(config, at::kFloat, 7), second = MakeModel(config, at::kFloat, 7);
  const at::Tensor a = Logits(*first, batch), b = Logits(*second, batch);
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_FALSE(at::equal(a, Logits(*first, batch)));  // the generator moved on
  config.attention_dropout = config.hidden_dropout = 0;
  auto without = MakeModel(config, at::kFloat, 7);
  first->SetTraining(false);
  EXPECT_LE(MaxDifference(Logits(*first, batch), Logits(*without, batch)), 0);
}

TEST(GptTest, DropoutKeepsTheMeanAndDropsItsShare) {
  const at::Tensor like = at::ones({200, 500});
  const at::Tensor mask = MakeDropMask(like, 0.25, MakeRng().Default());
  EXPECT_NEAR(mask.mean().item<double>(), 1.0, 0.01);
  EXPECT_NEAR(mask.eq(0).to(at::kDouble).mean().item<double>(), 0.25, 0.01);
  EXPECT_FALSE(MakeDropMask(like, 0, MakeRng().Default()).defined());
}

TEST(GptTest, BackwardIsBitForBitRepeatable) {
  TransformerConfig config = TinyConfig();
  config.hidden_dropout = 0.1;
  const Batch batch = RandomBatch(config, 2, 16, 5);
  std::vector<at::Tensor> grads[2];
  for (auto& run : grads) {
    auto model = MakeModel(config, at::kFloat);
    AttachMainGrads(model->parameters(), at::kFloat);
    model->Forward(batch, {}).mean().backward();
    for (const ParameterPtr& p : model->parameters()) run.push_back(p->main_grad);
  }
  for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_TRUE(at::equal(grads[0][i], grads[1][i]));
}

TEST(GptTest, TwoStagesJoinedEqualOne) {
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied);
    TransformerConfig config = TinyConfig();
    config.untie_embeddings_and_output_weights = !tied;
    const Batch batch = RandomBatch(config, 3, 8, 5);
    auto whole = MakeModel(config, at::kDouble);
    RngTracker rng = MakeRng();
    GptModel first(config,
                   {.pre_process = true,
                    .post_process = false,
                    .layer_offset = 0,
                    .num_layers = 1,
                    .seq_major = true},
                   {}, rng, at::kCPU, at::kDouble);
    GptModel last(config,
                  {.pre_process = false,
                   .post_process = true,
                   .layer_offset = 1,
                   .num_layers = 1,
                   .separate_tied_output = tied,
                   .seq_major = true},
                  {}, rng, at::kCPU, at::kDouble);
    CopyParameters(whole->parameters(), first.parameters());
    CopyParameters(whole->parameters(), last.parameters());
    const at::Tensor between = first.Forward(batch, {});
    ASSERT_EQ(between.sizes(), at::IntArrayRef({8, 3, 32}));  // (S, B, H)
    const at::Tensor received = between.detach().set_requires_grad(true);
    const at::Tensor losses = last.Forward(batch, received), want = whole->Forward(batch, {});
    ASSERT_EQ(losses.sizes(), want.sizes());
    EXPECT_LE(MaxDifference(losses, want), 1e-13);
    losses.sum().backward();
    between.backward(received.grad());
    want.sum().backward();
    for (const ParameterPtr& p : whole->parameters()) {
      SCOPED_TRACE(p->name);
      at::Tensor got;
      for (GptModel* stage : {&first, &last}) {
        for (const ParameterPtr& q : stage->parameters()) {
          const bool same = q->name == p->name ||
                            (tied && q->shared && p->name == "embedding.word_embeddings.weight");
          if (same) got = got.defined() ? got + q->data.grad() : q->data.grad();
        }
      }
      EXPECT_LE(MaxDifference(got, p->data.grad()), 1e-12);
    }
  }
}

TEST(GptTest, SharedFlagsOnlyWhereTheTiedWeightLivesTwice) {
  const TransformerConfig config = TinyConfig();
  auto whole = MakeModel(config, at::kFloat);
  for (const ParameterPtr& p : whole->parameters()) {
    EXPECT_FALSE(p->shared_embedding);
    EXPECT_FALSE(p->shared);
  }
  RngTracker rng = MakeRng();
  GptModel last(config,
                {.pre_process = false,
                 .post_process = true,
                 .layer_offset = 1,
                 .num_layers = 1,
                 .separate_tied_output = true,
                 .seq_major = true},
                {}, rng, at::kCPU, at::kFloat);
  const ParameterPtr& copy = last.parameters().back();
  EXPECT_EQ(copy->name, "output_layer.weight");
  EXPECT_TRUE(copy->shared_embedding && copy->shared && copy->is_embedding_or_output_parameter);
  EXPECT_EQ(copy->data.abs().max().item<double>(), 0);  // summed with the first stage's at set-up
}

TEST(GptTest, NamesAndOrderAreMegatrons) {
  TransformerConfig config = TinyConfig();
  config.num_layers = 1;
  config.untie_embeddings_and_output_weights = true;
  std::vector<std::string> names;
  auto model = MakeModel(config, at::kFloat);
  for (const ParameterPtr& p : model->parameters()) {
    names.push_back(p->name);
  }
  EXPECT_THAT(
      names,
      testing::ElementsAre(
          "embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
          "decoder.layers.0.input_layernorm.weight", "decoder.layers.0.input_layernorm.bias",
          "decoder.layers.0.self_attention.linear_proj.weight",
          "decoder.layers.0.self_attention.linear_proj.bias",
          "decoder.layers.0.self_attention.linear_qkv.weight",
          "decoder.layers.0.self_attention.linear_qkv.bias",
          "decoder.layers.0.pre_mlp_layernorm.weight", "decoder.layers.0.pre_mlp_layernorm.bias",
          "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.bias",
          "decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc2.bias",
          "decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight"));
}

TEST(GptTest, InitialWeightsFollowMegatronsRule) {
  TransformerConfig config = TinyConfig();
  config.hidden_size = 128;
  config.ffn_hidden_size = 512;
  config.kv_channels = 32;
  config.init_method_std = 0.1;
  auto model = MakeModel(config, at::kFloat);
  for (const ParameterPtr& p : model->parameters()) {
    SCOPED_TRACE(p->name);
    const bool output = p->name.find("linear_proj.weight") != std::string::npos ||
                        p->name.find("linear_fc2.weight") != std::string::npos;
    const bool norm_weight = p->name.find("layernorm.weight") != std::string::npos;
    if (p->data.dim() == 1) {
      EXPECT_TRUE(p->data.eq(norm_weight ? 1 : 0).all().item<bool>());
      continue;
    }
    const double want = output ? 0.1 / std::sqrt(2.0 * 2) : 0.1;
    EXPECT_NEAR(p->data.std().item<double>(), want, 0.05 * want);
    EXPECT_NEAR(p->data.mean().item<double>(), 0, 0.05 * want);
    EXPECT_EQ(p->global_shape, p->data.sizes().vec());
  }
}

TEST(GptTest, Bf16WeightsAreTheRoundedFp32Draw) {
  const TransformerConfig config = TinyConfig();
  auto fp32 = MakeModel(config, at::kFloat), bf16 = MakeModel(config, at::kBFloat16);
  for (size_t i = 0; i < fp32->parameters().size(); ++i) {
    EXPECT_TRUE(
        at::equal(fp32->parameters()[i]->data.to(at::kBFloat16), bf16->parameters()[i]->data));
  }
}

TEST(GptTest, EveryPrecisionAndOptionRuns) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const bool llama : {false, true}) {
      SCOPED_TRACE(llama);
      TransformerConfig config = TinyConfig();
      if (llama) {
        config.position_embedding = PositionEmbedding::kRope;
        config.normalization = Normalization::kRmsNorm;
        config.swiglu = config.qk_layernorm = true;
        config.num_query_groups = 2;
        config.add_bias_linear = false;
        config.add_qkv_bias = true;
      } else {
        config.hidden_dropout = config.attention_dropout = 0.1;
      }
      auto model = MakeModel(config, dtype);
      const at::Tensor losses = model->Forward(RandomBatch(config, 2, 8, 5), {});
      EXPECT_NEAR(losses.mean().item<double>(), std::log(64.0), 0.5);
      losses.mean().backward();
      for (const ParameterPtr& p : model->parameters()) {
        SCOPED_TRACE(p->name);
        ASSERT_TRUE(p->data.grad().defined());
        EXPECT_EQ(p->data.grad().scalar_type(), dtype);
        EXPECT_TRUE(at::isfinite(p->data.grad()).all().item<bool>());
      }
    }
  }
}

}  // namespace
}  // namespace muster
