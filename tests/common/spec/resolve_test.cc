#include "spec_fixture.h"

namespace muster {
namespace {

TEST(ResolveTest, WhatIsLeftOutFollowsFromTheRest) {
  const ResolvedSpec sizes = Resolve(ParsedWith({"training.global_batch_size=null"}), 257);
  EXPECT_EQ(sizes.data_parallel_size, 2);
  EXPECT_EQ(sizes.global_batch_size, 4);
  EXPECT_EQ(sizes.ffn_hidden_size, 256);
  EXPECT_EQ(sizes.kv_channels, 16);
  EXPECT_EQ(sizes.num_query_groups, 4);
  EXPECT_EQ(sizes.max_position_embeddings, 32);
  EXPECT_EQ(sizes.vocab_size, 257);
  EXPECT_EQ(sizes.padded_vocab_size, 384);
  EXPECT_EQ(sizes.train_iters, 100);
  EXPECT_EQ(sizes.train_samples, 400);
  EXPECT_EQ(sizes.split, "1,1,1");
  EXPECT_FALSE(sizes.grads_in_fp32);
}

TEST(ResolveTest, SwigluKeepsTheNumberOfWeights) {
  EXPECT_EQ(Resolve(ParsedWith({"model.swiglu=true"}), 257).ffn_hidden_size, 128);  // 170.67 down
  EXPECT_EQ(
      Resolve(ParsedWith({"model.swiglu=true", "model.hidden_size=4096"}), 257).ffn_hidden_size,
      10880);
}

// Reference 2.4.
TEST(ResolveTest, TheVocabularyIsPaddedForTensorParallelism) {
  EXPECT_EQ(Resolve(ParsedWith({"model.vocab_size=50257"}), 257).padded_vocab_size, 50304);
  EXPECT_EQ(
      Resolve(ParsedWith({"model.vocab_size=50257", "parallel.tensor_model_parallel_size=2"}), 257)
          .padded_vocab_size,
      50432);
}

TEST(ResolveTest, Bf16GradientsAreKeptInFp32UnlessAskedOtherwise) {
  EXPECT_TRUE(Resolve(ParsedWith({"training.bf16=true"}), 257).grads_in_fp32);
  EXPECT_FALSE(Resolve(ParsedWith({"training.bf16=true", "parallel.grad_reduce_in_bf16=true"}), 257)
                   .grads_in_fp32);
}

TEST(ResolveTest, SamplesGiveIterations) {
  EXPECT_EQ(Resolve(ParsedWith({"training.train_iters=null", "training.train_samples=1003"}), 257)
                .train_iters,
            125);
}

// A dumb second version: one step after the other.
int64_t CountSteps(int64_t start, int64_t increment, int64_t ramp, int64_t global, int64_t total) {
  const double per_level =
      static_cast<double>(ramp) / static_cast<double>((global - start) / increment);
  int64_t consumed = 0, steps = 0;
  while (consumed <= ramp && consumed <= total) {
    consumed += start + static_cast<int64_t>(static_cast<double>(consumed) / per_level) * increment;
    ++steps;
  }
  return steps + (total > consumed ? (total - consumed) / global : 0);
}

TEST(ResolveTest, RampUpTakesAsManyIterationsAsSteppingThroughIt) {
  const struct {
    int64_t start, increment, ramp, global, total;
  } rows[] = {{4, 4, 100, 8, 1000},        {4, 4, 300, 32, 5000},   {4, 4, 299, 32, 5000},
              {4, 28, 100000, 32, 200000}, {8, 8, 77777, 64, 1000}, {4, 4, 10, 64, 700}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.ramp);
    const JobSpec spec = ParsedWith(
        {"training.train_iters=null", "training.train_samples=" + std::to_string(row.total),
         "training.global_batch_size=" + std::to_string(row.global),
         "training.rampup_batch_size=[" + std::to_string(row.start) + "," +
             std::to_string(row.increment) + "," + std::to_string(row.ramp) + "]"});
    EXPECT_EQ(Resolve(spec, 257).train_iters,
              CountSteps(row.start, row.increment, row.ramp, row.global, row.total));
  }
}

}  // namespace
}  // namespace muster
