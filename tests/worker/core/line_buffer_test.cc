#include "worker/core/line_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LineBufferTest, LinesCutAnywhereComeOutWhole) {
  LineBuffer buffer(100, LineBuffer::TooLong::kFail);
  std::vector<std::string> lines;
  for (const char c : std::string("one\r\n\ntwo\nthr")) EXPECT_TRUE(buffer.Add({&c, 1}, &lines));
  EXPECT_THAT(lines, ElementsAre("one", "", "two"));
  EXPECT_EQ(buffer.TakeRest(), "thr");
  EXPECT_EQ(buffer.TakeRest(), "");
}

TEST(LineBufferTest, LongestLineIsTaken) {
  LineBuffer buffer(4, LineBuffer::TooLong::kFail);
  std::vector<std::string> lines;
  EXPECT_TRUE(buffer.Add("1234\n1234\n", &lines));
  EXPECT_THAT(lines, ElementsAre("1234", "1234"));
}

TEST(LineBufferTest, LongerLineFailsForGood) {
  LineBuffer buffer(4, LineBuffer::TooLong::kFail);
  std::vector<std::string> lines;
  EXPECT_FALSE(buffer.Add("12345", &lines));
  EXPECT_FALSE(buffer.Add("\nab\n", &lines));
  EXPECT_THAT(lines, IsEmpty());
}

TEST(LineBufferTest, LongerLineIsSplitInALog) {
  LineBuffer buffer(4, LineBuffer::TooLong::kSplit);
  std::vector<std::string> lines;
  EXPECT_TRUE(buffer.Add("123456789\nab\n", &lines));
  EXPECT_THAT(lines, ElementsAre("1234", "5678", "9", "ab"));
}

}  // namespace
}  // namespace muster
