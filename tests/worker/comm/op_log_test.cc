#include "worker/comm/op_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
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

// Numbers operations from 100 on and notes what it is told.
struct NotingObserver final : OpObserver {
  int64_t OpStarted(const Start& start) override {
    notes.push_back(absl::StrCat("start ", start.group, " ", start.sequence, " ", start.shape.op,
                                 " ", start.shape.bytes_in, " bytes"));
    for (const OpTransfer& transfer : start.transfers)
      notes.push_back(absl::StrCat(transfer.is_send ? "to " : "from ", transfer.peer));
    return 100 + num++;
  }
  void OpFinished(int64_t op) override { notes.push_back(absl::StrCat("end ", op)); }
  void OpWaited(int64_t op, int64_t begin_ns) override {
    EXPECT_LE(begin_ns, SteadyNanos());
    notes.push_back(absl::StrCat("wait ", op));
  }
  int num = 0;
  std::vector<std::string> notes;
};

TEST(OpLogTest, AnObserverHearsOfWhatStartsWhileItListens) {
  OpLog log("dp", {4, 5});
  NotingObserver observer;
  const int64_t before = log.Start({"barrier"}, kStart);
  log.Observe(&observer);
  EXPECT_TRUE(log.observed());
  const int64_t sum = log.Start({"all_reduce", "float", 8, 0, 32}, kStart);
  const int64_t messages = log.Start({"send_recv"}, kStart, {{{true, 1, 0, 8}, {false, 1, 1, 8}}});
  { const OpLog::WaitScope waiting(log, sum); }
  { const OpLog::WaitScope waiting(log, before); }
  log.Finish(before, absl::OkStatus(), kStart);
  log.Finish(sum, absl::OkStatus(), kStart);
  log.Observe(nullptr);
  EXPECT_FALSE(log.observed());
  log.Finish(messages, absl::OkStatus(), kStart);
  { const OpLog::WaitScope waiting(log, messages); }
  log.Start({"barrier"}, kStart);
  EXPECT_THAT(observer.notes,
              ElementsAre("start dp 1 all_reduce 32 bytes", "start dp 2 send_recv 0 bytes", "to 1",
                          "from 1", "wait 100", "end 100"));
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
