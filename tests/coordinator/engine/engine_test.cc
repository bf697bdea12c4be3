#include "coordinator/engine/engine.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

class RecordingSink : public ActionSink {
 public:
  void Send(StreamId stream, const AgentMessage& message) override {
    sent.emplace_back(stream, message.index());
  }
  void End(StreamId stream, const absl::Status& status) override { ended[stream] = status; }
  void Answer(const WaitDone& done) override { answers.push_back(done); }

  // The engine's thread writes; a test reads them after a call that the engine has answered.
  std::vector<std::pair<StreamId, size_t>> sent;
  std::map<StreamId, absl::Status> ended;
  std::vector<WaitDone> answers;
};

RegisterAgent TwoWorkers() {
  return {.incarnation = "incarnation-1",
          .node = "n1",
          .address = "127.0.0.1",
          .workers = {{"a", "cpu", DeviceKind::kCpu, 0}, {"b", "cpu", DeviceKind::kCpu, 1}}};
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() : engine_({}, &clock_, &sink_) { engine_.Start(); }
  absl::Status Call(const Event& event) {
    std::promise<absl::Status> done;
    const absl::Status posted =
        engine_.Post(event, [&](const Outcome& outcome) { done.set_value(outcome.status); });
    return posted.ok() ? done.get_future().get() : posted;
  }
  std::string Submit() {
    std::promise<std::string> id;
    EXPECT_TRUE(engine_
                    .Post(SubmitJob{.spec_json = TestSpec()},
                          [&](const Outcome& outcome) {
                            id.set_value(std::get<SubmitReply>(outcome.reply).job_id);
                          })
                    .ok());
    return id.get_future().get();
  }
  // Everything posted before, and its actions, has been carried out.
  void Settle() {
    std::promise<void> done;
    ASSERT_TRUE(
        engine_.Read([&](const absl::Status&, const Coordinator&, absl::Time) { done.set_value(); })
            .ok());
    done.get_future().get();
  }

  FakeClock clock_;
  RecordingSink sink_;
  Engine engine_;
};

TEST_F(EngineTest, AnswersAndCarriesOutInOrder) {
  ASSERT_TRUE(Call(TwoWorkers()).ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).ok());
  Submit();
  Settle();
  ASSERT_EQ(sink_.sent.size(), 2u);
  EXPECT_EQ(sink_.sent[0].second, AgentMessage(WelcomeMessage{}).index());
  EXPECT_EQ(sink_.sent[1].second, AgentMessage(LaunchMessage{}).index());
}

TEST_F(EngineTest, TicksByTheClockItWasGiven) {
  ASSERT_TRUE(Call(TwoWorkers()).ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).ok());
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    Settle();
  }
  EXPECT_EQ(sink_.ended.count(1), 1u);
}

TEST_F(EngineTest, AWatchIsTriedAgainWhenItsJobChanges) {
  const std::string job = Submit();
  std::promise<JobState> seen;
  int attempts = 0;
  ASSERT_TRUE(engine_
                  .Watch(job, absl::Hours(1),
                         [&](const Coordinator& core, absl::Time, bool) {
                           ++attempts;
                           const JobState state = core.FindJob(job)->state();
                           if (!IsEnded(state)) return false;
                           seen.set_value(state);
                           return true;
                         })
                  .ok());
  Settle();
  EXPECT_EQ(attempts, 1);
  ASSERT_TRUE(Call(CancelJob{.job_id = job}).ok());
  EXPECT_EQ(seen.get_future().get(), JobState::kCancelled);
  Settle();
  EXPECT_EQ(attempts, 2);
}

TEST_F(EngineTest, AWatchEndsWhenItsTimeHasPassed) {
  const std::string job = Submit();
  std::promise<bool> last;
  ASSERT_TRUE(engine_
                  .Watch(job, absl::Seconds(1),
                         [&](const Coordinator&, absl::Time, bool is_last) {
                           if (is_last) last.set_value(true);
                           return is_last;
                         })
                  .ok());
  Settle();
  clock_.Advance(absl::Seconds(2));
  Settle();
  EXPECT_TRUE(last.get_future().get());
}

TEST_F(EngineTest, StopAnswersWhatIsLeft) {
  const std::string job = Submit();
  int watch_ended = 0;
  ASSERT_TRUE(engine_
                  .Watch(job, absl::Hours(1),
                         [&](const Coordinator&, absl::Time, bool last) {
                           watch_ended += last;
                           return false;
                         })
                  .ok());
  engine_.Stop();
  EXPECT_EQ(watch_ended, 1);
  EXPECT_EQ(Call(CancelJob{.job_id = job}).code(), absl::StatusCode::kUnavailable);
}

TEST(EngineQueueTest, IsBoundedAndWhatWasAcceptedIsAnswered) {
  FakeClock clock;
  RecordingSink sink;
  Engine engine({.max_queue = 2}, &clock, &sink);  // not started: nothing is taken out
  int refused = 0;
  const auto done = [&](const Outcome& outcome) {
    refused += outcome.status.code() == absl::StatusCode::kUnavailable;
  };
  EXPECT_TRUE(engine.Post(CancelJob{}, done).ok());
  EXPECT_TRUE(engine.Post(CancelJob{}, done).ok());
  EXPECT_EQ(engine.Post(CancelJob{}, done).code(), absl::StatusCode::kResourceExhausted);
  engine.Stop();
  EXPECT_EQ(refused, 2);
}

TEST(EngineThreadsTest, ManyCallersAreAllAnsweredOnce) {
  RealClock clock;
  RecordingSink sink;
  Engine engine({}, &clock, &sink);
  engine.Start();
  constexpr int kThreads = 4, kCalls = 200;
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        const auto count = [&](const Outcome&) { ++answered; };
        EXPECT_TRUE(engine.Post(CancelJob{.job_id = absl::StrCat(t, "-", i)}, count).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine.Stop();
  EXPECT_EQ(answered, kThreads * kCalls);
}

}  // namespace
}  // namespace muster
