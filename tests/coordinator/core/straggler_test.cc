#include "coordinator/core/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

struct Times {
  double compute, wait, data;
};

class StragglerTest : public testing::Test {
 protected:
  // A round of reports, 10 s after the one before.
  std::vector<StragglerNews> Round(const std::vector<Times>& ranks) {
    now_ += absl::Seconds(10);
    for (size_t r = 0; r < ranks.size(); ++r) {
      watch_.Take(static_cast<int>(r),
                  {.steps = 10,
                   .compute_ms = ranks[r].compute,
                   .communication_wait_ms = ranks[r].wait,
                   .data_ms = ranks[r].data},
                  now_);
    }
    return watch_.Judge(now_);
  }
  std::vector<StragglerNews> Rounds(int count, const std::vector<Times>& ranks) {
    std::vector<StragglerNews> all;
    for (int i = 0; i < count; ++i) {
      for (StragglerNews& news : Round(ranks)) all.push_back(std::move(news));
    }
    return all;
  }
  StragglerWatch watch_;
  absl::Time now_ = kNow;
};

TEST_F(StragglerTest, WhoIsSlowAndWhy) {
  struct Row {
    const char* name;
    std::vector<int> stages;
    std::vector<Times> ranks;
    int rank;  // -1: nobody
    StragglerCause cause;
  };
  const Row rows[] = {
      {"compute", {0, 0, 0}, {{10, 21, 1}, {30, 1, 1}, {11, 20, 1}}, 1, StragglerCause::kCompute},
      {"compute, of two", {0, 0}, {{10, 20, 1}, {30, 1, 1}}, 1, StragglerCause::kCompute},
      {"data", {0, 0, 0}, {{10, 21, 1}, {10, 20, 1}, {10, 1, 22}}, 2, StragglerCause::kData},
      {"its link",
       {0, 0, 0, 0},
       {{10, 5, 1}, {10, 6, 1}, {10, 40, 1}, {10, 5, 1}},
       2,
       StragglerCause::kCommunicationWait},
      {"all alike", {0, 0, 0}, {{10, 2, 1}, {11, 1, 1}, {10, 2, 1}}, -1, {}},
      {"slower, but nobody waits", {0, 0, 0}, {{10, 1, 1}, {30, 1, 1}, {10, 1, 1}}, -1, {}},
      {"a few milliseconds do not count", {0, 0, 0}, {{1, 2, 0}, {3, 0, 0}, {1, 2, 0}}, -1, {}},
      {"just within the factor", {0, 0, 0}, {{100, 50, 0}, {149, 1, 0}, {100, 50, 0}}, -1, {}},
      {"just over it",
       {0, 0, 0},
       {{100, 50, 0}, {151, 1, 0}, {100, 50, 0}},
       1,
       StragglerCause::kCompute},
      {"stages differ by what they do",
       {0, 0, 1, 1},
       {{10, 30, 1}, {10, 30, 1}, {40, 1, 1}, {40, 1, 1}},
       -1,
       {}},
      {"one of a stage",
       {0, 0, 1, 1},
       {{10, 70, 1}, {10, 70, 1}, {40, 40, 1}, {80, 1, 1}},
       3,
       StragglerCause::kCompute},
      {"stages of one rank",
       {0, 1, 2},
       {{10, 30, 1}, {10, 30, 1}, {40, 1, 1}},
       2,
       StragglerCause::kCompute},
      {"a rank alone", {0}, {{10, 3, 50}}, -1, {}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    watch_.Begin(row.stages);
    EXPECT_THAT(Round(row.ranks), IsEmpty());  // once is not enough
    const auto news = Rounds(4, row.ranks);
    if (row.rank < 0) {
      EXPECT_THAT(news, IsEmpty());
      continue;
    }
    ASSERT_EQ(news.size(), 1u);  // said once
    EXPECT_EQ(news[0].rank, row.rank);
    EXPECT_EQ(news[0].cause, row.cause);
    EXPECT_FALSE(news[0].over);
    EXPECT_THAT(news[0].text, HasSubstr(StragglerCauseName(row.cause)));
    EXPECT_EQ(watch_.slow().size(), 1u);
  }
}

TEST_F(StragglerTest, TheTextHasTheNumbers) {
  watch_.Begin({0, 0, 0});
  const auto news = Rounds(2, {{10.2, 21, 1}, {31, 1, 1}, {10.2, 19.8, 1}});
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].text,
            "compute 31.0 ms a step, median of the others 10.2 ms; they wait 19.8 ms in "
            "communication");
}

TEST_F(StragglerTest, ItIsOverWhenItWasFastInAsManyReports) {
  watch_.Begin({0, 0, 0});
  const std::vector<Times> slow = {{10, 20, 1}, {30, 1, 1}, {10, 20, 1}};
  const std::vector<Times> fast = {{10, 1, 1}, {11, 1, 1}, {10, 1, 1}};
  EXPECT_EQ(Rounds(2, slow).size(), 1u);
  EXPECT_THAT(Round(fast), IsEmpty());
  EXPECT_THAT(Round(slow), IsEmpty());  // the streak is broken
  EXPECT_THAT(Round(fast), IsEmpty());
  const auto news = Round(fast);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].over);
  EXPECT_THAT(watch_.slow(), IsEmpty());
}

TEST_F(StragglerTest, WhoSaysNothingAnyMoreIsForgotten) {
  watch_.Begin({0, 0, 0});
  Rounds(2, {{10, 20, 1}, {30, 1, 1}, {10, 20, 1}});
  now_ += absl::Seconds(70);
  watch_.Take(0, {.steps = 10, .compute_ms = 10}, now_);
  const auto news = watch_.Judge(now_);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].over);
}

TEST_F(StragglerTest, ANewEpochStartsFromNothing) {
  watch_.Begin({0, 0, 0});
  Rounds(2, {{10, 20, 1}, {30, 1, 1}, {10, 20, 1}});
  watch_.Begin({0, 0});
  EXPECT_THAT(watch_.slow(), IsEmpty());
  watch_.Take(2, {.steps = 10, .compute_ms = 99}, now_);  // of an older epoch: no such rank
  EXPECT_THAT(Rounds(3, {{10, 1, 1}, {10, 1, 1}}), IsEmpty());
}

}  // namespace
}  // namespace muster
