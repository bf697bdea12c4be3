// What a good spec means.
#include "gmock/gmock.h"
#include "spec_fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(SpecJsonTest, WhatIsLeftOutHasItsDefault) {
  const JobSpec spec = ParsedWith({});
  EXPECT_EQ(spec.model.num_layers, 4);
  EXPECT_EQ(spec.optimizer.adam_beta2, 0.999);
  EXPECT_EQ(spec.training.seed, 1234);
  EXPECT_EQ(spec.model.ffn_hidden_size, std::nullopt);
}

TEST(SpecJsonTest, TheBackendFollowsTheDevice) {
  EXPECT_EQ(ParsedWith({}).parallel.distributed_backend, "gloo");
  EXPECT_EQ(ParsedWith({"resources.device=cuda"}).parallel.distributed_backend, "nccl");
}

TEST(SpecJsonTest, ADataPathIsAStringOrAListWithOrWithoutWeights) {
  const std::string gpt = "data.dataset_provider=gpt";
  EXPECT_THAT(ParsedWith({gpt, "data.data_path=a"}).data.data_path, ElementsAre("a"));
  EXPECT_THAT(ParsedWith({gpt, "data.data_path=[\"a\",\"b\"]"}).data.data_path,
              ElementsAre("a", "b"));
  EXPECT_THAT(ParsedWith({gpt, "data.data_path=[0.7,\"a\",\"0.3\",\"b\"]"}).data.data_path,
              ElementsAre("0.7", "a", "0.3", "b"));
}

TEST(SpecJsonTest, AWholeNumberMayBeWrittenWithAnExponent) {
  EXPECT_EQ(ParsedWith({"training.train_iters=1e6"}).training.train_iters, 1000000);
}

TEST(SpecJsonTest, AByteOrderMarkIsFine) {
  EXPECT_TRUE(ParseJobSpec("\xEF\xBB\xBF" + GoodSpec()).problems.empty());
}

TEST(SpecJsonTest, AnyTextIsAllowedInANameOfTheUsersOwn) {
  EXPECT_EQ(ParsedWith({"name=\"Grüße an 世界\""}).name, "Grüße an 世界");
}

TEST(SpecJsonTest, APluginMayHaveProvidersOfAnyName) {
  const JobSpec spec = ParsedWith({"plugin=libmine.so", "model.model_provider=mine",
                                   "model.forward_step=mine", "data.dataset_provider=mine"});
  EXPECT_EQ(spec.model.model_provider, "mine");
}

TEST(SpecJsonTest, NothingNeedsToBeTrainedToEvaluate) {
  ParsedWith({"training.train_iters=null", "training.skip_train=true"});
}

}  // namespace
}  // namespace muster
