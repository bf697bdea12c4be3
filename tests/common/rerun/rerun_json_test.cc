#include "common/rerun/rerun_json.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(RerunJsonTest, CommonPartComesBack) {
  const RerunCommonState state{.mode = RerunMode::kValidateResults,
                               .state = RerunState::kWillRerunFromCheckpoint,
                               .current_iteration = 7};
  EXPECT_EQ(EncodeRerunCommon(state),
            R"({"current_iteration":7,"mode":"validate_results","state":3})");
  const auto back = DecodeRerunCommon(EncodeRerunCommon(state));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->state, state.state);
  EXPECT_EQ(back->mode, state.mode);
  EXPECT_EQ(back->current_iteration, 7);
}

TEST(RerunJsonTest, RankPartComesBackAlsoWithResultsThatAreNoNumbers) {
  for (const double result : {0.1, std::nan(""), -std::numeric_limits<double>::infinity()}) {
    const RerunRankState state{.flags = {.rerun = 1, .checkpoint = 1},
                               .injection_rate = 9,
                               .injection_type = InjectedError::kCorrectResult,
                               .injection_pending = InjectedError::kPersistent,
                               .failed_call = ValidationCall{"found NaN", 5, 2},
                               .initial_result = result,
                               .suspicious = {"node-a", "gpu3"},
                               .large_values = {{"loss", {100, 2.5}}}};
    const auto back = DecodeRerunRank(EncodeRerunRank(state, {{4, true, 1}}));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->flags, state.flags);
    EXPECT_EQ(back->injection_rate, 9);
    EXPECT_EQ(back->injection_type, state.injection_type);
    EXPECT_EQ(back->injection_pending, state.injection_pending);
    EXPECT_EQ(back->failed_call, state.failed_call);
    EXPECT_EQ(RelativeDifference(back->initial_result, result), 0);
    EXPECT_EQ(back->suspicious, state.suspicious);
    EXPECT_EQ(back->large_values, state.large_values);
  }
}

// Reference 13.5: what is kept, and nothing else.
TEST(RerunJsonTest, BetweenStepsNoIteratorIsKept) {
  EXPECT_EQ(EncodeRerunRank({}),
            R"({"checkpoint_requested":false,"continue_requested":false,"data_iterators":null,)"
            R"("error_injector":{"pending_type":null,"rate":0,"type":"transient_error"},)"
            R"("failed_validation_call":null,"initial_result":0.0,"large_values":{},)"
            R"("rerun_requested":false,"restart_again_requested":false,"suspicious_device":"",)"
            R"("suspicious_node":""})");
}

TEST(RerunJsonTest, LargeValuesOfSeveralRanksAreTheLargest) {
  const LargeValues one = {{"loss", {.num_seen = 100, .max_abs = 5}}};
  const LargeValues two = {{"loss", {.num_seen = 40, .max_abs = 7.25}},
                           {"other", {.num_seen = 1, .max_abs = 2}}};
  EXPECT_EQ(*MergeLargeValues({EncodeLargeValues(one)}), one);
  EXPECT_EQ(*MergeLargeValues({EncodeLargeValues(one), EncodeLargeValues(two)}),
            (LargeValues{{"loss", {.num_seen = 100, .max_abs = 7.25}},
                         {"other", {.num_seen = 1, .max_abs = 2}}}));
  EXPECT_TRUE(MergeLargeValues({})->empty());
  EXPECT_EQ(MergeLargeValues({"{"}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RerunJsonTest, DamageIsNamed) {
  EXPECT_THAT(
      std::string(DecodeRerunCommon(R"({"mode":"validate_results","state":9})").status().message()),
      testing::HasSubstr("state=9"));
  EXPECT_EQ(DecodeRerunRank("{").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(DecodeRerunRank("{}").status().message()),
              testing::HasSubstr("rerun_requested"));
}

}  // namespace
}  // namespace muster
