#include "worker/comm/op_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

TEST(FormatRanksTest, CompressesRanges) {
  EXPECT_EQ(FormatRanks({}), "");
  EXPECT_EQ(FormatRanks({3}), "3");
  EXPECT_EQ(FormatRanks({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(OpLogTest, DescribesStartedDoneAndFailed) {
  OpLog log("dp", {4, 5, 6});
  const int64_t a = log.Start({"all_reduce", "float", 8}, kStart);
  const int64_t b = log.Start({"all_gather", "bfloat16", 2, 6}, kStart);
  const int64_t c = log.Start({"barrier"}, kStart);
  log.Finish(a, absl::OkStatus(), kStart + absl::Milliseconds(3));
  log.Finish(b, absl::AbortedError("x"), kStart + absl::Seconds(2));
  log.Arrived(c, 0);
  log.Arrived(c, 1);
  const std::string text = log.Describe(kStart + absl::Seconds(9));
  EXPECT_EQ(text,
            "group dp sequence 0 all_reduce 8 float done in 3ms\n"
            "group dp sequence 1 all_gather 2 -> 6 bfloat16 failed after 2s\n"
            "group dp sequence 2 barrier started 9s ago; arrived: ranks 4-5; missing: ranks 6\n");
  EXPECT_EQ(log.Name(b), "group dp, sequence 1, all_gather 2 -> 6 bfloat16");
}

TEST(OpLogTest, KeepsTheNewest) {
  OpLog log("dp", {0}, /*capacity=*/3);
  for (int i = 0; i < 10; ++i) log.Start({"all_reduce", "float", i}, kStart);
  log.Finish(2, absl::OkStatus(), kStart);  // overwritten long ago: ignored
  log.Arrived(2, 0);
  const std::string text = log.Describe(kStart);
  EXPECT_THAT(text, HasSubstr("sequence 7 "));
  EXPECT_THAT(text, HasSubstr("sequence 9 "));
  EXPECT_THAT(text, Not(HasSubstr("sequence 6 ")));
  EXPECT_THAT(text, Not(HasSubstr("done")));
}

TEST(OpLogTest, ThreadsMayRecordWhileAnotherDescribes) {
  OpLog log("dp", {0, 1}, /*capacity=*/8);
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) {
      const int64_t sequence = log.Start({"barrier"}, kStart);
      log.Arrived(sequence, i % 2);
      log.Finish(sequence, absl::OkStatus(), kStart);
    }
  });
  for (int i = 0; i < 100; ++i) log.Describe(kStart);
  writer.join();
  EXPECT_THAT(log.Describe(kStart), HasSubstr("sequence 999 "));
}

}  // namespace
}  // namespace muster
