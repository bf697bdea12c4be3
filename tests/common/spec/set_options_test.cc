#include "gmock/gmock.h"
#include "spec_fixture.h"

namespace muster {
namespace {

TEST(SetOptionsTest, ChangesAddsAndMakesSections) {
  const JobSpec spec = ParsedWith({"training.train_iters=7", "optimizer.weight_decay=0.5",
                                   "evaluation.at_start=true", "name=other"});
  EXPECT_EQ(spec.training.train_iters, 7);
  EXPECT_EQ(spec.optimizer.weight_decay, 0.5);
  EXPECT_TRUE(spec.evaluation.at_start);
  EXPECT_EQ(spec.name, "other");
}

TEST(SetOptionsTest, AFieldOfTextTakesTheWordsAsTheyStand) {
  EXPECT_EQ(ParsedWith({"name=123"}).name, "123");
  EXPECT_EQ(ParsedWith({"data.split=1"}).data.split, "1");
  EXPECT_EQ(ParsedWith({"data.split=969,30,1"}).data.split, "969,30,1");
  EXPECT_EQ(ParsedWith({"name=\"quoted\""}).name, "quoted");
  EXPECT_EQ(ParsedWith({"checkpoint.load=a=b"}).checkpoint.load, "a=b");
}

TEST(SetOptionsTest, NullUnsetsAnOptional) {
  EXPECT_EQ(ParsedWith({"checkpoint.load=x", "checkpoint.load=null"}).checkpoint.load,
            std::nullopt);
}

TEST(SetOptionsTest, AVariableOfTheTrainersIsSetByItsName) {
  const JobSpec spec = ParsedWith({"resources.env.OMP_STACKSIZE=1", "resources.env.MODE=fast"});
  EXPECT_THAT(spec.resources.env, ::testing::ElementsAre(::testing::Pair("MODE", "fast"),
                                                         ::testing::Pair("OMP_STACKSIZE", "1")));
}

TEST(SetOptionsTest, TheLastOfTwoSettingsCounts) {
  EXPECT_EQ(ParsedWith({"training.seed=5", "training.seed=6"}).training.seed, 6);
}

TEST(SetOptionsTest, FaultsOfTheTextStayForTheParserToReport) {
  const std::string twice = Replaced(GoodSpec(), "\"lr\": 0.001", "\"lr\": 1e400, \"lr\": 2");
  const absl::StatusOr<std::string> text = ApplySetOptions(twice, {"training.seed=5"});
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(ParseJobSpec(*text).problems.size(), 2u);
}

TEST(SetOptionsTest, AMalformedSettingIsRefused) {
  for (const char* setting : {"", "=", "=3", "training", "training.=3", ".seed=3", "a.b.c.d=3",
                              "training.seed.x=3", "name.x=3"}) {
    SCOPED_TRACE(setting);
    const absl::StatusOr<std::string> text =
        ApplySetOptions(GoodSpec(), {"training.seed=1", setting});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()), ::testing::HasSubstr("--set "));
  }
  EXPECT_FALSE(ApplySetOptions("{", {"training.seed=1"}).ok());
  EXPECT_FALSE(ApplySetOptions("[]", {"training.seed=1"}).ok());
}

}  // namespace
}  // namespace muster
