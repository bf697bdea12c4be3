// What the trainer lacks, and which paths must be looked at.
#include "common/spec/supported.h"

#include "common/spec/spec_paths.h"
#include "gmock/gmock.h"
#include "spec_fixture.h"

namespace muster {
namespace {

TEST(SupportedTest, APlainJobRuns) {
  EXPECT_TRUE(UnsupportedFeatures(ParsedWith({})).empty());
  EXPECT_TRUE(UnsupportedFeatures(ParsedWith({"training.bf16=true", "optimizer.optimizer=sgd",
                                              "parallel.overlap_grad_reduce=true"}))
                  .empty());
  EXPECT_TRUE(UnsupportedFeatures(
                  ParsedWith({"training.fp16=true", "training.recompute_granularity=selective"}))
                  .empty());
}

TEST(SupportedTest, ParallelLayoutsRun) {
  EXPECT_TRUE(UnsupportedFeatures(
                  ParsedWith({"resources.world_size=8", "parallel.tensor_model_parallel_size=2",
                              "parallel.pipeline_model_parallel_size=2",
                              "parallel.use_distributed_optimizer=true"}))
                  .empty());
  EXPECT_TRUE(UnsupportedFeatures(ParsedWith({"optimizer.optimizer=dist_muon"})).empty());
  EXPECT_TRUE(UnsupportedFeatures(ParsedWith({"parallel.context_parallel_size=2"})).empty());
}

TEST(SupportedTest, MixturesOfExpertsRun) {
  EXPECT_TRUE(UnsupportedFeatures(
                  ParsedWith({"model.num_experts=4", "model.add_bias_linear=false",
                              "resources.world_size=4", "parallel.expert_model_parallel_size=2",
                              "parallel.expert_tensor_parallel_size=2"}))
                  .empty());
}

TEST(SupportedTest, WhatTheTrainerLacksIsNamedOnAGoodSpec) {
  const struct {
    std::vector<std::string> settings;
    const char* field;
  } rows[] = {
      {{"data.tokenizer_type=huggingface", "data.tokenizer_model=t.json"}, "data.tokenizer_type"},
      {{"checkpoint.async_save=true"}, "checkpoint.async_save"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.field);
    const std::vector<SpecProblem> problems = UnsupportedFeatures(ParsedWith(row.settings));
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems[0].field, row.field);
    EXPECT_THAT(problems[0].message,
                ::testing::HasSubstr("is not supported by this version's trainer"));
    EXPECT_NE(problems[0].value, "");
  }
}

TEST(SupportedTest, SeveralMissingFeaturesAreNamedTogether) {
  EXPECT_EQ(
      UnsupportedFeatures(ParsedWith({"data.tokenizer_type=huggingface",
                                      "data.tokenizer_model=t.json", "checkpoint.async_save=true"}))
          .size(),
      2u);
}

std::vector<std::string> Described(const std::vector<SpecPath>& paths) {
  std::vector<std::string> lines;
  for (const SpecPath& path : paths) {
    const char* need = path.need == SpecPath::Need::kReadableFile     ? " file"
                       : path.need == SpecPath::Need::kReadableFolder ? " folder"
                                                                      : " writable";
    lines.push_back(path.field + " " + path.path + need);
  }
  return lines;
}

TEST(SpecPathsTest, EveryPathOfTheSpecIsListedWithItsNeed) {
  const JobSpec spec = ParsedWith(
      {"plugin=p.so", "data.dataset_provider=gpt", "data.data_path=[0.5,\"d/a\",0.5,\"d/b\"]",
       "data.data_cache_path=cache", "data.tokenizer_type=huggingface",
       "data.tokenizer_model=t.json", "checkpoint.save=out", "checkpoint.save_interval=1",
       "checkpoint.load=in", "checkpoint.exit_on_missing_checkpoint=true",
       "checkpoint.pretrained_checkpoint=pre"});
  EXPECT_THAT(Described(SpecPaths(spec)),
              ::testing::ElementsAre(
                  "plugin p.so file", "data.data_path d/a.idx file", "data.data_path d/a.bin file",
                  "data.data_path d/b.idx file", "data.data_path d/b.bin file",
                  "data.data_cache_path cache writable", "data.tokenizer_model t.json file",
                  "checkpoint.save out writable", "checkpoint.load in folder",
                  "checkpoint.pretrained_checkpoint pre folder"));
}

TEST(SpecPathsTest, AMissingLoadFolderIsAFreshStartUnlessRefused) {
  EXPECT_TRUE(SpecPaths(ParsedWith({"checkpoint.load=in"})).empty());
}

}  // namespace
}  // namespace muster
