#include "common/recovery/elastic_size.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/spec/spec_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr char kTenIterations[] = R"("train_iters": 10)";

std::string SpecText(int world_size, const std::string& parallel, const std::string& training,
                     const std::string& model = "", const std::string& length = kTenIterations) {
  return absl::StrCat(
      R"({"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "seq_length": 8)",
      model, R"(}, "parallel": {"distributed_backend": "gloo")", parallel,
      R"(}, "data": {"dataset_provider": "mock"}, "optimizer": {"lr": 0.01},
      "training": {"micro_batch_size": 2, )",
      length, training, R"(}, "resources": {"world_size": )", world_size, "}}");
}

JobSpec Parse(const std::string& text) {
  const ParsedSpec parsed = ParseJobSpec(text);
  EXPECT_TRUE(parsed.problems.empty()) << parsed.problems.front().ToString();
  return parsed.spec;
}

struct Row {
  const char* name;
  int world_size;
  const char *parallel, *training, *model;
  int64_t replicas, want;
  const char* length = nullptr;
};

TEST(ElasticSizeTest, TheLargestThatTheRulesAllow) {
  const Row rows[] = {
      {"all", 4, "", R"(, "global_batch_size": 24)", "", 4, 4},
      {"one less does", 4, "", R"(, "global_batch_size": 24)", "", 3, 3},
      {"5 does not divide", 6, "", R"(, "global_batch_size": 24)", "", 5, 4},
      {"default batch of 4 replicas", 4, "", "", "", 3, 2},
      {"down to one", 4, "", R"(, "global_batch_size": 8)", "", 1, 1},
      {"none", 4, "", R"(, "global_batch_size": 8)", "", 0, 0},
      {"tensor parallel", 8, R"(, "tensor_model_parallel_size": 2)", R"(, "global_batch_size": 24)",
       "", 3, 3},
      {"experts over two replicas", 6, R"(, "expert_model_parallel_size": 2)",
       R"(, "global_batch_size": 24)", R"(, "num_experts": 4)", 3, 2},
      {"fewer replicas than experts need", 4, R"(, "expert_model_parallel_size": 2)",
       R"(, "global_batch_size": 24)", R"(, "num_experts": 4)", 1, 0},
      {"ramp-up", 4, "", R"(, "global_batch_size": 24, "rampup_batch_size": [8, 8, 48])", "", 3, 2,
       R"("train_samples": 480)"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const std::string text = SpecText(row.world_size, row.parallel, row.training, row.model,
                                      row.length == nullptr ? kTenIterations : row.length);
    EXPECT_EQ(LargestDataParallelSize(Parse(text), row.replicas), row.want);
  }
}

TEST(ElasticSizeTest, TheResizedSpecKeepsTheGlobalBatch) {
  const std::string text = SpecText(8, R"(, "tensor_model_parallel_size": 2)", "");
  const auto resized = SpecWithReplicas(text, 2);
  ASSERT_TRUE(resized.ok()) << resized.status();
  const JobSpec spec = Parse(*resized);
  EXPECT_EQ(spec.resources.world_size, 4);
  EXPECT_EQ(spec.training.global_batch_size, 8);  // 2 x dp 4, that was the default
  EXPECT_EQ(RanksOfReplica(spec), 2);
  const auto grown = SpecWithReplicas(*resized, 4);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(Parse(*grown).resources.world_size, 8);
  EXPECT_EQ(Parse(*grown).training.global_batch_size, 8);
}

TEST(ElasticSizeTest, ABrokenRuleIsNamed) {
  const auto resized = SpecWithReplicas(SpecText(4, "", R"(, "global_batch_size": 8)"), 3);
  EXPECT_EQ(resized.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(resized.status().message()), HasSubstr("with 3 replicas"));
  EXPECT_THAT(std::string(resized.status().message()), HasSubstr("global_batch_size"));
}

TEST(ElasticSizeTest, WhatIsNoSpecIsRefused) {
  EXPECT_EQ(SpecWithReplicas("{", 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
