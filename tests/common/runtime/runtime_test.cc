#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "common/runtime/random_bytes.h"
#include "nlohmann/json.hpp"

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

TEST(RandomBytesTest, HasItsSizeAndIsAnotherEachTime) {
  EXPECT_EQ(RandomBytes(16).size(), 16u);
  EXPECT_NE(RandomBytes(16), RandomBytes(16));
}

TEST(LogTest, ARecordIsOneLineWithLevelAndName) {
  SetLogName("trainer r3");
  testing::internal::CaptureStderr();
  MUSTER_LOG(kWarning) << "slow step=" << 7;
  MUSTER_LOG(kDebug) << "not shown";
  MUSTER_LOG(kInfo) << "reason=\"of\nanother process\"";
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find(" W trainer r3 slow step=7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("reason=\"of\\nanother process\"\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(LogTest, JsonLinesCarryTheContextOfTheThreadOrElseOfTheProcess) {
  SetLogName("trainer r3");
  SetLogFormat(LogFormat::kJson);
  SetLogContext({.job = "job-1", .epoch = 2, .rank = 3, .worker = "a/0"});
  testing::internal::CaptureStderr();
  MUSTER_LOG(kInfo) << "one";
  {
    const ScopedLogContext scope({.job = "job-9", .epoch = 1, .rank = {}, .worker = ""});
    MUSTER_LOG(kInfo) << "two";
  }
  MUSTER_LOG(kInfo) << "three\nlines\n";
  const std::string text = testing::internal::GetCapturedStderr();
  SetLogFormat(LogFormat::kText);
  SetLogContext({});
  EXPECT_NE(text.find("\"process\": \"trainer r3\", \"job\": \"job-1\", \"epoch\": 2, \"rank\": 3, "
                      "\"worker\": \"a/0\", \"message\": \"one\"}\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\"job\": \"job-9\", \"epoch\": 1, \"message\": \"two\"}\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);  // a record stays one line
}

TEST(LogTest, AFormatIsOneOfTwoNames) {
  EXPECT_FALSE(SetLogFormatByName("xml"));
  EXPECT_TRUE(SetLogFormatByName("json"));
  EXPECT_STREQ(getenv("MUSTER_LOG_FORMAT"), "json");  // for child processes
  EXPECT_TRUE(SetLogFormatByName("text"));
}

TEST(LogJsonTest, EveryTextBecomesOneValidObject) {
  const std::string head = R"({"time": "1970-01-01T00:00:01.500Z", "level": "warning", )"
                           R"("process": "p", )";
  const struct {
    const char* name;
    std::string text, want;
  } rows[] = {
      {"no fields", "hello there", R"("message": "hello there"})"},
      {"fields", "agent refused node=n1 reason=\"a b\"",
       R"("message": "agent refused", "fields": {"node": "n1", "reason": "a b"}})"},
      {"known fields move up", "job state job=job-7 epoch=2 rank=5 worker=a/1",
       R"("job": "job-7", "epoch": 2, "rank": 5, "worker": "a/1", "message": "job state", )"
       R"("fields": {"job": "job-7", "epoch": "2", "rank": "5", "worker": "a/1"}})"},
      {"quotes within a value", "ended reason=\"flag \"x\" is bad\" code=2",
       R"("message": "ended", "fields": {"reason": "flag \"x\" is bad", "code": "2"}})"},
      {"an equals sign in the message", "lr=0.1 is too high",
       R"("message": "lr=0.1 is too high"})"},
      {"a quote that is never closed", "x reason=\"a b", R"("message": "x reason=\"a b"})"},
      {"an empty value",
       "x reason=\"\" y=", R"("message": "x", "fields": {"reason": "", "y": ""}})"},
      {"control characters", std::string("a\0b\x1b[31m\tc\\", 11),
       R"("message": "a\u0000b\u001b[31m\u0009c\\"})"},
      {"not UTF-8", "caf\xe9", "\"message\": \"caf\xef\xbf\xbd\"}"},
      {"UTF-8", "\u00e9\U0001f600", "\"message\": \"\u00e9\U0001f600\"}"},
      {"three quotes", "x a=\"\"\"y", R"("message": "x a=\"\"\"y"})"},
      {"nothing", "", R"("message": ""})"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const std::string json =
        LogRecordAsJson(absl::FromUnixMillis(1500), LogLevel::kWarning, "p", {}, row.text);
    EXPECT_EQ(json, head + row.want);
    EXPECT_TRUE(nlohmann::json::accept(json)) << json;
  }
}

}  // namespace
}  // namespace muster
