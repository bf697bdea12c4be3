// Registry, GPT providers from a spec, and the GPT loss function.

#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/provider/builtin.h"
#include "worker/provider/gpt_forward_step.h"

namespace muster {
namespace {

using testing::HasSubstr;

JobSpec SmallSpec() {
  JobSpec spec;
  spec.model.num_layers = 2;
  spec.model.hidden_size = 16;
  spec.model.num_attention_heads = 2;
  spec.model.seq_length = 8;
  spec.model.vocab_size = 50;
  spec.training.micro_batch_size = 2;
  spec.training.train_iters = 3;
  spec.optimizer.lr = 1e-3;
  return spec;
}

absl::StatusOr<std::unique_ptr<ModelChunk>> BuildGpt(const JobSpec& spec) {
  ProviderRegistry registry;
  RegisterBuiltinProviders(registry);
  const ResolvedSpec sizes = Resolve(spec, 257);
  const ParallelContext parallel = ParallelContext::SingleProcess();
  RngTracker rng = *RngTracker::Create(1234, {}, false, false);
  ExpertState experts;  // without MoE layers nobody keeps it
  return (*registry.model_provider(spec.model.model_provider))
      ->Build({.spec = spec,
               .sizes = sizes,
               .parallel = parallel,
               .rng = rng,
               .experts = experts,
               .device = at::kCPU,
               .params_dtype = at::kFloat,
               .layer_offset = 0,
               .num_layers = spec.model.num_layers});
}

class OneBatch final : public DataIterator {
 public:
  explicit OneBatch(Batch batch) : batch_(std::move(batch)) {}
  absl::StatusOr<Batch> Next() override {
    if (used_) return absl::OutOfRangeError("end of data");
    used_ = true;
    return batch_;
  }

 private:
  Batch batch_;
  bool used_ = false;
};

Batch SmallBatch() {
  Batch batch;
  batch.tokens = at::arange(16, at::kLong).view({2, 8});
  batch.labels = batch.tokens + 1;
  batch.loss_mask = at::ones({2, 8});
  batch.loss_mask.select(1, 0).zero_();
  batch.position_ids = at::arange(8, at::kLong).expand({2, 8}).contiguous();
  return batch;
}

TEST(ProviderRegistryTest, UnknownNameListsTheKnownAndTheNearest) {
  ProviderRegistry registry;
  RegisterBuiltinProviders(registry);
  EXPECT_TRUE(registry.dataset_provider("mock").ok());
  const absl::Status status = registry.dataset_provider("mok").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("data.dataset_provider='mok'"), HasSubstr("gpt, mock"),
                             HasSubstr("did you mean 'mock'")));
}

TEST(ProviderRegistryTest, ATakenNameIsRefused) {
  ProviderRegistry registry;
  RegisterBuiltinProviders(registry);
  const absl::Status status = registry.AddForwardStep("gpt", std::make_shared<GptForwardStep>());
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(registry.AddForwardStep("other", nullptr).code(), absl::StatusCode::kInvalidArgument);
}

TEST(GptModelProviderTest, BuildsWhatTheSpecSays) {
  auto model = BuildGpt(SmallSpec());
  ASSERT_TRUE(model.ok()) << model.status();
  int64_t elements = 0;
  for (const ParameterPtr& p : (*model)->parameters()) elements += p->data.numel();
  // 128 padded columns, 8 positions, per layer 12 h^2 + 13 h, final norm 2 h; h = 16.
  EXPECT_EQ(elements, 128 * 16 + 8 * 16 + 2 * (12 * 256 + 13 * 16) + 2 * 16);
}

TEST(GptModelProviderTest, WhatIsUnknownIsNamed) {
  JobSpec spec = SmallSpec();
  spec.model.normalization = "BatchNorm";
  const absl::Status status = BuildGpt(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.normalization='BatchNorm'"));
}

TEST(GptForwardStepTest, LossIsTheMaskedSumAndItsCount) {
  auto model = BuildGpt(SmallSpec());
  ASSERT_TRUE(model.ok());
  (*model)->SetTraining(false);
  const Batch batch = SmallBatch();
  OneBatch data(batch);
  GptForwardStep step;
  auto result = step.Run(data, **model, {});
  ASSERT_TRUE(result.ok()) << result.status();
  const LossResult loss = result->loss_function(result->output);
  const double want = (result->output * batch.loss_mask).sum().item<double>();
  EXPECT_DOUBLE_EQ(loss.loss_sum.item<double>(), want);
  EXPECT_TRUE(loss.loss_sum.requires_grad());
  EXPECT_EQ(loss.num_tokens.scalar_type(), at::kLong);
  EXPECT_EQ(loss.num_tokens.item<int64_t>(), 14);
  const at::Tensor& reported = loss.reported.at("lm loss");
  EXPECT_FALSE(reported.requires_grad());
  EXPECT_EQ(reported.scalar_type(), at::kFloat);
  EXPECT_DOUBLE_EQ(reported[0].item<double>(), want);
  EXPECT_EQ(reported[1].item<double>(), 14);
}

TEST(GptForwardStepTest, EndOfDataIsPassedOn) {
  auto model = BuildGpt(SmallSpec());
  ASSERT_TRUE(model.ok());
  OneBatch data(SmallBatch());
  (void)data.Next();
  EXPECT_EQ(GptForwardStep().Run(data, **model, {}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(GptDatasetsTest, MockGivesBatchesOfTheSpecsShape) {
  ProviderRegistry registry;
  RegisterBuiltinProviders(registry);
  JobSpec spec = SmallSpec();
  spec.data.dataset_provider = "mock";
  const ResolvedSpec sizes = Resolve(spec, 257);
  auto provider = registry.dataset_provider("mock");
  ASSERT_TRUE(provider.ok());
  auto datasets = (*provider)->Build(
      {.spec = spec, .sizes = sizes, .train_samples = 6, .valid_samples = 2, .test_samples = 2});
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  ASSERT_NE(datasets->train, nullptr);
  EXPECT_GE(datasets->train->size(), 6);
  auto batch = datasets->train->Collate({0, 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->tokens.sizes(), at::IntArrayRef({2, 8}));
}

}  // namespace
}  // namespace muster
