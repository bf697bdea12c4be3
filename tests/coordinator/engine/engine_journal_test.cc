// The engine with a journal: what is written before what, restarts, and a disk that cannot be
// written for a while.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "coordinator/core/ledger_rows.h"
#include "coordinator/engine/engine.h"
#include "tests/coordinator/core/test_spec.h"
#include "tests/support/memory_journal.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Sink : public ActionSink {
 public:
  void Send(StreamId stream, const AgentMessage& message) override { ++num_sent; }
  void End(StreamId stream, const absl::Status& status) override { ended[stream] = status; }
  void Answer(const WaitDone& done) override {}
  int num_sent = 0;
  std::map<StreamId, absl::Status> ended;
};

RegisterAgent TwoWorkers() {
  return {.incarnation = "incarnation-1",
          .node = "n1",
          .address = "127.0.0.1",
          .workers = {{"a", "cpu", DeviceKind::kCpu, 0}, {"b", "cpu", DeviceKind::kCpu, 1}}};
}

class EngineJournalTest : public testing::Test {
 protected:
  void Make(const EngineOptions& options = {}) {
    engine_ = nullptr;
    faulty_ = std::make_unique<FaultyJournal>(&memory_);
    engine_ = std::make_unique<Engine>(options, &clock_, &sink_, faulty_.get());
  }
  void SetUp() override { Make(); }
  // The outcome, once it has come.
  std::shared_ptr<std::promise<Outcome>> Post(const Event& event) {
    auto done = std::make_shared<std::promise<Outcome>>();
    const absl::Status posted =
        engine_->Post(event, [done](const Outcome& outcome) { done->set_value(outcome); });
    if (!posted.ok()) done->set_value(Outcome{.status = posted});
    return done;
  }
  Outcome Call(const Event& event) { return Post(event)->get_future().get(); }
  // On the engine's thread.
  void Look(const std::function<void(const Coordinator&)>& look) {
    std::promise<void> done;
    ASSERT_TRUE(engine_
                    ->Read([&](const absl::Status&, const Coordinator& core, absl::Time) {
                      look(core);
                      done.set_value();
                    })
                    .ok());
    done.get_future().get();
  }
  // A tick has passed, and all that was posted before it.
  void Tick(absl::Duration by = absl::Milliseconds(60)) {
    clock_.Advance(by);
    Look([](const Coordinator&) {});
  }
  int64_t NumWrites() {
    int64_t writes = 0;
    Look([&](const Coordinator&) { writes = faulty_->num_writes(); });
    return writes;
  }
  static bool IsReady(std::future<Outcome>& outcome) {
    return outcome.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  FakeClock clock_;
  Sink sink_;
  MemoryJournal memory_;
  std::unique_ptr<FaultyJournal> faulty_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineJournalTest, ABatchIsOneWriteAndRepliesComeAfterIt) {
  int replies = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(engine_
                    ->Post(SubmitJob{.spec_json = TestSpec()},
                           [&](const Outcome& outcome) {
                             EXPECT_TRUE(outcome.status.ok());
                             EXPECT_EQ(faulty_->num_writes(), 1);
                             ++replies;
                           })
                    .ok());
  }
  engine_->Start();
  Look([&](const Coordinator&) {
    ASSERT_EQ(replies, 5);
    ASSERT_EQ(faulty_->written().size(), 1u);
    EXPECT_EQ(faulty_->written()[0].durability, Durability::kDecision);
  });
}

TEST_F(EngineJournalTest, ABatchIsBounded) {
  Make({.max_batch = 2});
  for (int i = 0; i < 5; ++i) (void)Post(SubmitJob{.spec_json = TestSpec()});
  engine_->Start();
  EXPECT_EQ(NumWrites(), 3);
}

TEST_F(EngineJournalTest, HeartbeatsAndReadsWriteNothing) {
  std::atomic<bool> beating = false;
  engine_->SetHeartbeatSource([&](std::vector<Heartbeat>* heartbeats) {
    if (!beating) return;
    heartbeats->push_back({.stream = 1});
    heartbeats->push_back({.stream = 77});
  });
  engine_->Start();
  ASSERT_TRUE(Call(TwoWorkers()).status.ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).status.ok());
  beating = true;
  const int64_t before = NumWrites();
  for (int i = 0; i < 100; ++i) Tick();
  EXPECT_EQ(NumWrites(), before);
  Look([&](const Coordinator& core) {
    EXPECT_EQ(core.membership().FindAgent("incarnation-1")->state, AgentState::kAlive);
    EXPECT_EQ(sink_.ended.count(1), 0u) << "its heartbeats were taken";
    EXPECT_EQ(sink_.ended[77].code(), absl::StatusCode::kAborted) << "that stream is nobody's";
  });
}

TEST_F(EngineJournalTest, ARestartGoesOnWhereTheLastOneWas) {
  engine_->Start();
  ASSERT_TRUE(Call(TwoWorkers()).status.ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).status.ok());
  const std::string first =
      std::get<SubmitReply>(Call(SubmitJob{.spec_json = TestSpec()}).reply).job_id;
  Make();
  const auto restored = engine_->Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->num_jobs, 1u);
  EXPECT_EQ(restored->num_active_jobs, 1u);
  EXPECT_EQ(restored->num_agents, 1u);
  engine_->Start();
  Look([&](const Coordinator& core) {
    ASSERT_NE(core.FindJob(first), nullptr);
    EXPECT_EQ(core.FindJob(first)->state(), JobState::kForming);
    EXPECT_EQ(core.FindJob(first)->epoch(), 1);
  });
  EXPECT_TRUE(Call(OpenStream{"incarnation-1", 1}).status.ok()) << "the same incarnation goes on";
  const auto second = Call(SubmitJob{.spec_json = TestSpec()});
  EXPECT_NE(std::get<SubmitReply>(second.reply).job_id, first);
}

TEST_F(EngineJournalTest, AJournalThatCannotBeReadStopsTheStart) {
  ASSERT_TRUE(memory_.Write({.records = {{"coordinator", "{"}}}).ok());
  const absl::Status status = engine_->Restore().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the journal: coordinator"), HasSubstr("backup")));
}

TEST_F(EngineJournalTest, WhileItCannotWriteNothingIsPromisedAndThenAllIs) {
  engine_->Start();
  ASSERT_TRUE(Call(TwoWorkers()).status.ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).status.ok());
  int sent = 0;
  Look([&](const Coordinator&) {
    sent = sink_.num_sent;
    faulty_->Fail(faulty_->num_writes(), 3, absl::ResourceExhaustedError("the disk is full"));
  });
  auto submitted = Post(SubmitJob{.spec_json = TestSpec()})->get_future();
  Look([&](const Coordinator& core) {
    EXPECT_EQ(sink_.num_sent, sent) << "no launch before it is written";
    EXPECT_FALSE(core.storage().writable);
    EXPECT_EQ(core.storage().reason, "the disk is full");
  });
  EXPECT_FALSE(IsReady(submitted));
  const Outcome refused = Call(CancelJob{.job_id = "job-1"});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("the disk is full"));
  EXPECT_EQ(Call(OpenStream{"incarnation-1", 2}).status.code(), absl::StatusCode::kUnavailable);
  // Taken from the stream, and neither acknowledged nor refused.
  EXPECT_TRUE(Call(ReportBatch{.stream = 1, .sequence = 1}).status.ok());
  Tick();
  EXPECT_FALSE(IsReady(submitted)) << "the second attempt failed, too";
  Tick();
  Tick();
  EXPECT_TRUE(submitted.get().status.ok());
  Look([&](const Coordinator& core) {
    EXPECT_GT(sink_.num_sent, sent);
    EXPECT_EQ(sink_.ended[1].code(), absl::StatusCode::kUnavailable) << "it has to report again";
    EXPECT_EQ(core.membership().FindAgent("incarnation-1")->reports_through, 0);
  });
  Tick(absl::Milliseconds(1'100));
  Look([&](const Coordinator& core) { EXPECT_TRUE(core.storage().writable); });
  EXPECT_TRUE(Call(CancelJob{.job_id = "job-1"}).status.ok());
}

TEST_F(EngineJournalTest, WhatCouldNotBeWrittenIsNotAcknowledgedWhenItStops) {
  engine_->Start();
  Look([&](const Coordinator&) {
    faulty_->Fail(faulty_->num_writes(), 1'000'000, absl::UnavailableError("I/O error"));
  });
  auto submitted = Post(SubmitJob{.spec_json = TestSpec()})->get_future();
  Look([](const Coordinator&) {});
  engine_->Stop();
  EXPECT_EQ(submitted.get().status.code(), absl::StatusCode::kUnavailable);
  Make();
  ASSERT_TRUE(engine_->Restore().ok());
  engine_->Start();
  Look([](const Coordinator& core) { EXPECT_TRUE(core.jobs().empty()); });
}

TEST_F(EngineJournalTest, StorageThatIsRunningOutPausesAdmissionUntilItIsMended) {
  engine_->Start();
  ASSERT_TRUE(Call(TwoWorkers()).status.ok());
  Look([&](const Coordinator&) {
    memory_.condition = absl::ResourceExhaustedError("no room for the reserve");
  });
  Tick(absl::Milliseconds(1'100));
  Look([&](const Coordinator& core) {
    EXPECT_FALSE(core.storage().writable);
    EXPECT_EQ(core.storage().reason, "no room for the reserve");
    memory_.condition = absl::OkStatus();
  });
  Tick(absl::Milliseconds(1'100));
  Look([&](const Coordinator& core) { EXPECT_TRUE(core.storage().writable); });
}

TEST_F(EngineJournalTest, ReportsAreOnTheDiskWithinASecondAndAtTheEnd) {
  engine_->Start();
  ASSERT_TRUE(Call(TwoWorkers()).status.ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).status.ok());
  const std::string job =
      std::get<SubmitReply>(Call(SubmitJob{.spec_json = TestSpec()}).reply).job_id;
  StepMessage step;
  step.iteration = 1;
  const AssignmentRef from{"a", job, 1, 0};
  ASSERT_TRUE(Call(ReportBatch{1, 1, {{from, step}}}).status.ok());
  step.iteration = 2;
  ASSERT_TRUE(Call(ReportBatch{1, 2, {{from, step}}}).status.ok());
  Look([&](const Coordinator&) {
    EXPECT_EQ(faulty_->written().back().durability, Durability::kReport);
    EXPECT_EQ(memory_.num_syncs, 0);
  });
  Tick(absl::Milliseconds(900));
  Look([&](const Coordinator&) { EXPECT_EQ(memory_.num_syncs, 1); });
  Tick(absl::Milliseconds(900));
  Look([&](const Coordinator&) { EXPECT_EQ(memory_.num_syncs, 1) << "nothing new"; });
  engine_->Stop();
  EXPECT_EQ(memory_.num_syncs, 2);
}

TEST_F(EngineJournalTest, TheLedgerIsReadBeyondWhatIsInMemory) {
  EngineOptions options;
  options.core.jobs.history.max_steps = 3;
  Make(options);
  engine_->Start();
  ASSERT_TRUE(Call(TwoWorkers()).status.ok());
  ASSERT_TRUE(Call(OpenStream{"incarnation-1", 1}).status.ok());
  const std::string job =
      std::get<SubmitReply>(Call(SubmitJob{.spec_json = TestSpec()}).reply).job_id;
  for (int64_t i = 1; i <= 10; ++i) {
    StepMessage step;
    step.iteration = i;
    ASSERT_TRUE(Call(ReportBatch{1, i, {{{"a", job, 1, 0}, step}}}).status.ok());
  }
  Look([&](const Coordinator& core) {
    const JobMachine& machine = *core.FindJob(job);
    EXPECT_EQ(machine.history().steps().size(), 3u);
    const auto rows = engine_->ReadLedger(machine, LedgerKind::kStep, 2, 4);
    ASSERT_TRUE(rows.ok());
    ASSERT_EQ(rows->size(), 4u);
    EXPECT_EQ(rows->front().index, 2);
    EXPECT_EQ(rows->back().index, 5);
    const auto step = StepOfRow(rows->front());
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->index, 2);
    EXPECT_EQ(step->value.step.iteration, 2);
    EXPECT_EQ(step->value.step.epoch, 1);
    EXPECT_FALSE(StepOfRow({1, LedgerKind::kStep, 1, "{"}).ok());
    const auto events = engine_->ReadLedger(machine, LedgerKind::kEvent, 1, 1);
    ASSERT_TRUE(events.ok());
    EXPECT_EQ(EventOfRow(events->front())->value.kind, "submitted");
  });
}

}  // namespace
}  // namespace muster
