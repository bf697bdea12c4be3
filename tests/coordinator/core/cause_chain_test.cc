#include "coordinator/core/cause_chain.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

class CauseChainTest : public testing::Test {
 protected:
  void Fail(const std::string& text, absl::Duration at, int restarts = 0, bool symptom = false) {
    chain_.Begin(Cause(text, at, restarts, symptom), start_ + at);
  }
  FailureCause Cause(const std::string& text, absl::Duration at, int restarts, bool symptom) {
    FailureCause cause;
    cause.text = text;
    cause.time = start_ + at;
    cause.restarts = restarts;
    cause.symptom = symptom;
    return cause;
  }

  const absl::Time start_ = absl::FromUnixSeconds(1'700'000'000);
  CauseChain chain_{absl::Minutes(60)};
};

TEST_F(CauseChainTest, TheFirstOfThoseInTheWindowIsTheCause) {
  EXPECT_TRUE(chain_.empty());
  Fail("a", absl::Minutes(0), 0);
  EXPECT_EQ(chain_.Text(0), "a");
  Fail("b", absl::Minutes(40), 1);
  EXPECT_EQ(chain_.first()->text, "a");
  EXPECT_EQ(chain_.newest().text, "b");
  EXPECT_EQ(chain_.Text(1), "a; 1 attempt followed, which failed: b");
  Fail("c", absl::Minutes(59), 3);
  EXPECT_EQ(chain_.Text(3), "a; 3 attempts followed, the last of which failed: c");
  Fail("d", absl::Minutes(60), 4);  // a is out of it
  EXPECT_EQ(chain_.first()->text, "b");
  EXPECT_EQ(chain_.Text(4), "b; 3 attempts followed, the last of which failed: d");
  Fail("e", absl::Minutes(500), 5);
  EXPECT_EQ(chain_.Text(5), "e");
}

TEST_F(CauseChainTest, ASymptomIsReplacedByItsCauseOnly) {
  Fail("a", absl::Minutes(0), 0);
  Fail("noticed", absl::Minutes(1), 1, /*symptom=*/true);
  EXPECT_FALSE(chain_.Improve(Cause("noticed too", absl::Minutes(1), 0, true)));
  EXPECT_TRUE(chain_.Improve(Cause("b", absl::Minutes(1), 0, false)));
  EXPECT_FALSE(chain_.Improve(Cause("later", absl::Minutes(1), 0, false)));
  EXPECT_EQ(chain_.newest().text, "b");
  EXPECT_EQ(chain_.newest().restarts, 1);
  Fail("noticed", absl::Minutes(2), 2, /*symptom=*/true);
  chain_.Settle();
  EXPECT_FALSE(chain_.newest().symptom);
  EXPECT_EQ(chain_.first()->text, "a");
}

TEST_F(CauseChainTest, TheFirstStaysHoweverManyFollow) {
  for (int i = 0; i < 1000; ++i) Fail(absl::StrCat("cause ", i), absl::Seconds(i), i);
  EXPECT_EQ(chain_.first()->text, "cause 0");
  EXPECT_EQ(chain_.newest().text, "cause 999");
  EXPECT_LT(chain_.later().size(), 10u);
}

}  // namespace
}  // namespace muster
