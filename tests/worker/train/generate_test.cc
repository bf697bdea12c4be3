// Text from a checkpoint, and the choice of the next token.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/provider/builtin.h"
#include "worker/train/generate.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

at::Generator Seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

TEST(SamplerTest, TemperatureZeroTakesTheLargestAndNeverPadding) {
  const at::Tensor logits = at::tensor({0.0, 3.0, 1.0, 9.0});
  EXPECT_EQ(SampleToken(logits, 3, {.temperature = 0}, Seeded(1)), 1);
  EXPECT_EQ(SampleToken(logits, 4, {.temperature = 0}, Seeded(1)), 3);
}

TEST(SamplerTest, DrawsFollowTheProbabilitiesAndTheCut) {
  const at::Tensor logits = at::tensor({0.0, std::log(2.0), std::log(5.0), 50.0});
  const auto shares = [&](const SamplingOptions& options) {
    at::Generator generator = Seeded(7);
    std::vector<double> counts(4);
    for (int i = 0; i < 4000; ++i) {
      counts[static_cast<size_t>(SampleToken(logits, 3, options, generator))] += 1.0 / 4000;
    }
    return counts;
  };
  // 1 : 2 : 5; five standard deviations are 0.04.
  const auto all = shares({});
  EXPECT_NEAR(all[0], 1.0 / 8, 0.04);
  EXPECT_NEAR(all[1], 2.0 / 8, 0.04);
  EXPECT_EQ(all[3], 0);
  const auto cut = shares({.top_k = 2});
  EXPECT_EQ(cut[0], 0);
  EXPECT_NEAR(cut[1], 2.0 / 7, 0.04);
  // Squared: 1 : 4 : 25.
  const auto cold = shares({.temperature = 0.5});
  EXPECT_NEAR(cold[2], 25.0 / 30, 0.04);
}

class GenerateTest : public testing::Test {
 protected:
  // Two ranks train on counting sequences, with dropout, which generation must not use.
  void SetUp() override {
    RegisterBuiltinProviders(providers_);
    Train(root_.Spec({"training.train_iters=80", "optimizer.lr=0.02", "resources.world_size=2",
                      "model.hidden_dropout=0.05", absl::StrCat("checkpoint.save=", root_ / "ckpt"),
                      "checkpoint.save_interval=1000"}));
  }
  std::string Text(const SamplingOptions& sampling, int64_t seed = 1,
                   const std::string& prompt = std::string("\1\2\3", 3), int64_t tokens = 30) {
    std::string text;
    const absl::Status status = Generate({.checkpoint = root_ / "ckpt",
                                          .prompt = prompt,
                                          .max_new_tokens = tokens,
                                          .sampling = sampling,
                                          .seed = seed,
                                          .providers = providers_},
                                         [&](const std::string& piece) { text += piece; });
    EXPECT_TRUE(status.ok()) << status;
    return text;
  }
  TrainTestRoot root_;
  ProviderRegistry providers_;
};

TEST_F(GenerateTest, GoesOnAsItWasTaught) {
  const std::string greedy = Text({.temperature = 0}, 1, std::string("\1\2\3", 3), 5);
  EXPECT_EQ(greedy, std::string("\1\2\3\4\5\6\7\10", 8));
}

TEST_F(GenerateTest, DeterministicForASeedAndGreedyForAnySeed) {
  EXPECT_EQ(Text({.temperature = 0}, 1), Text({.temperature = 0}, 2));
  EXPECT_EQ(Text({.temperature = 0}, 1), Text({.top_k = 1}, 2));
  EXPECT_EQ(Text({.temperature = 3}, 5), Text({.temperature = 3}, 5));
  std::set<std::string> texts;
  for (int64_t seed = 1; seed <= 5; ++seed) texts.insert(Text({.temperature = 3}, seed));
  EXPECT_GT(texts.size(), 1u);
}

TEST_F(GenerateTest, PromptsOfAnyLength) {
  EXPECT_EQ(Text({}, 1, "abc", 0), "abc");
  Text({}, 1, "", 3);
  // Longer than the model's sequence of 16: the newest tokens count.
  const std::string prompt(40, '\2');
  EXPECT_THAT(Text({}, 1, prompt, 3), StartsWith(prompt));
}

TEST_F(GenerateTest, AFolderWithoutACheckpointIsAnError) {
  const absl::Status status =
      Generate({.checkpoint = root_ / "nothing", .prompt = "a", .providers = providers_},
               [](const std::string&) { FAIL(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing"));
}

// The text of a checkpoint of 8 ranks is that of the same weights, saved again by one process.
TEST(GenerateLayoutsTest, AnyLayoutsCheckpointSpeaks) {
  TrainTestRoot root;
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  const std::vector<std::string> model = {"model.swiglu=true", "model.ffn_hidden_size=64",
                                          "training.train_iters=3",
                                          "checkpoint.save_interval=1000"};
  const auto train = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), model.begin(), model.end());
    Train(root.Spec(settings));
  };
  train({"resources.world_size=8", "parallel.tensor_model_parallel_size=2",
         "parallel.pipeline_model_parallel_size=2", "parallel.use_distributed_optimizer=true",
         "parallel.sequence_parallel=true", "model.make_vocab_size_divisible_by=4",
         absl::StrCat("checkpoint.save=", root / "many")});
  train({"model.make_vocab_size_divisible_by=8", absl::StrCat("checkpoint.load=", root / "many"),
         absl::StrCat("checkpoint.save=", root / "one")});
  const auto text = [&](const std::string& folder, const SamplingOptions& sampling) {
    std::string all;
    const absl::Status status = Generate({.checkpoint = root / folder,
                                          .prompt = std::string("\1\2\3", 3),
                                          .max_new_tokens = 20,
                                          .sampling = sampling,
                                          .seed = 3,
                                          .providers = providers},
                                         [&](const std::string& piece) { all += piece; });
    EXPECT_TRUE(status.ok()) << status;
    return all;
  };
  EXPECT_EQ(text("many", {}), text("one", {}));
  EXPECT_EQ(text("many", {.temperature = 0}), text("one", {.temperature = 0}));
  EXPECT_NE(text("many", {}), text("many", {.temperature = 0}));
}

}  // namespace
}  // namespace muster
