#include <gtest/gtest.h>

#include <thread>

#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"

namespace muster {
namespace {

TEST(FakeClockTest, WallAndSteadyMoveTogetherAndOnlyWhenTold) {
  FakeClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Steady(), absl::ZeroDuration());
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(102));
  EXPECT_EQ(clock.Steady(), absl::Seconds(2));
}

TEST(CondVarTest, WakesAWaiterAndTellsATimeOut) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::thread setter([&] {
    MutexLock lock(&mu);
    ready = true;
    changed.NotifyAll();
  });
  {
    MutexLock lock(&mu);
    while (!ready) changed.Wait(&mu);
  }
  setter.join();
  MutexLock lock(&mu);
  EXPECT_FALSE(changed.WaitFor(&mu, absl::Milliseconds(1)));
}

TEST(LogTest, ARecordIsOneLineWithLevelAndName) {
  SetLogName("trainer r3");
  testing::internal::CaptureStderr();
  MUSTER_LOG(kWarning) << "slow step=" << 7;
  MUSTER_LOG(kDebug) << "not shown";
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find(" W trainer r3 slow step=7\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

}  // namespace
}  // namespace muster
