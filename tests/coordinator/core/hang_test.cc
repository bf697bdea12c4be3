// Hangs, stragglers and their likes through the whole core: probes go out, answers come in, and the
// one that hangs is stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;
constexpr absl::Duration kTick = absl::Milliseconds(50);

class HangTest : public testing::Test {
 protected:
  // Ranks 0-2 on nodes 1-3, ten steps of 100 ms behind them.
  void Train(int max_restarts = 0) {
    for (int node = 1; node <= kRanks; ++node) cluster_.Join(node);
    job_ =
        cluster_.Submit({.world_size = kRanks, .train_iters = 1000, .max_restarts = max_restarts});
    cluster_.Phase(job_, "forming");
    cluster_.Phase(job_, "loading");
    cluster_.Phase(job_, "training");
    for (; iteration_ < 10; ++iteration_) {
      cluster_.Advance(absl::Milliseconds(100), kTick);
      Step();
    }
    ASSERT_EQ(Job().state(), JobState::kRunning);
  }
  void Step() {
    cluster_.Report(job_, kRanks - 1, StepMessage{.iteration = iteration_ + 1, .elapsed_ms = 100});
  }
  const JobMachine& Job() const { return cluster_.Job(job_); }

  // Ranks wait in an operation of their group but for `missing`.
  static ProbeReport Waits() {
    ProbeReport report{.running = true, .process_state = "S", .cpu_ms = 500};
    report.reply = ProbeReplyMessage{.iteration = 10, .phase = "training", .thread_cpu_ms = 400};
    report.reply->ops = {{.group = "dp",
                          .ranks = {0, 1, 2},
                          .sequence = 118,
                          .operation = "all_reduce 64 float",
                          .done = false,
                          .age_ms = 900}};
    return report;
  }
  static ProbeReport Stopped() { return {.running = true, .process_state = "T", .cpu_ms = 500}; }
  static ProbeReport Missing() {
    ProbeReport report = Waits();
    report.reply->ops[0].sequence = 117;
    report.reply->ops[0].done = true;
    return report;
  }

  using Answer = std::function<std::optional<ProbeReport>(int rank)>;
  // Time goes by, probes are answered, until the job does not run any more.
  absl::Duration UntilItStops(absl::Duration limit, const Answer& answer) {
    const absl::Time start = cluster_.now();
    while (cluster_.now() - start < limit && Job().state() == JobState::kRunning) {
      cluster_.Advance(kTick, kTick);
      AnswerProbes(answer);
    }
    return cluster_.now() - start;
  }
  void AnswerProbes(const Answer& answer) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const ProbeOrder& order : cluster_.Sent<ProbeOrder>(rank + 1)) {
        if (order.request <= answered_[rank]) continue;
        answered_[rank] = order.request;
        std::optional<ProbeReport> report = answer(rank);
        if (!report.has_value()) continue;
        report->request = order.request;
        cluster_.Report(job_, rank, *report);
      }
    }
  }
  std::vector<std::string> Events(const std::string& kind) const {
    std::vector<std::string> texts;
    for (const auto& entry : Job().history().events().entries()) {
      if (entry.value.kind == kind) texts.push_back(entry.value.text);
    }
    return texts;
  }

  CoreCluster cluster_;
  std::string job_;
  int64_t iteration_ = 0;
  std::map<int, int64_t> answered_;
};

TEST_F(HangTest, AStoppedTrainerIsFoundInThreeTimesAStepAndASecond) {
  Train();
  const absl::Duration took =
      UntilItStops(absl::Seconds(10), [&](int rank) { return rank == 1 ? Stopped() : Waits(); });
  // 3 x 0.1 s + 1 s; the percentile may be 9 % too high.
  EXPECT_GE(took, absl::Milliseconds(1250));
  EXPECT_LE(took, absl::Milliseconds(1450));
  EXPECT_EQ(Job().state(), JobState::kFailed);  // max_restarts = 0
  EXPECT_EQ(Job().cause()->rank, 1);
  EXPECT_EQ(Job().cause()->kind, "hang");
  EXPECT_THAT(Job().cause()->text, HasSubstr("hang: is stopped (state T), while training, after "
                                             "iteration 10"));
  ASSERT_EQ(Events("hang").size(), 1u);
  EXPECT_THAT(Events("hang")[0],
              HasSubstr("rank 1 is stopped (state T); operations: dp (ranks 0-2) "
                        "all_reduce 64 float, number 118: ranks 0,2 wait"));
}

TEST_F(HangTest, WhoHasNotArrivedIsStoppedAtOnceAndTheJobRecovers) {
  Train(3);
  UntilItStops(absl::Seconds(10), [&](int rank) { return rank == 2 ? Missing() : Waits(); });
  EXPECT_NE(Job().state(), JobState::kRunning);
  EXPECT_FALSE(Job().ended());
  EXPECT_THAT(Job().cause()->text, HasSubstr("has not arrived in dp's all_reduce 64 float (number "
                                             "118): ranks 0-1 wait there"));
  const auto stops = cluster_.Sent<StopTrainerMessage>(3);
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].grace, absl::ZeroDuration());
  EXPECT_THAT(cluster_.Sent<StopTrainerMessage>(1), IsEmpty());
}

TEST_F(HangTest, ASlowOneIsReportedOnceAndStoppedByTheWatchdogAlone) {
  Train(3);
  double cpu_ms = 400;
  const Answer answer = [&](int rank) {
    if (rank != 2) return Waits();
    ProbeReport report = Missing();
    report.reply->thread_cpu_ms = cpu_ms += 100;
    return report;
  };
  UntilItStops(absl::Seconds(30), answer);
  EXPECT_EQ(Job().state(), JobState::kRunning);
  ASSERT_EQ(Events("hang").size(), 1u);
  EXPECT_THAT(Events("hang")[0], HasSubstr("rank 2 computes, others wait: slow, not hung"));
  EXPECT_THAT(Events("hang")[0], HasSubstr("nobody is stopped for it before 10m"));
  // At the watchdog's limit all are formed anew, and whoever the others waited for is replaced.
  UntilItStops(absl::Minutes(11), answer);
  EXPECT_NE(Job().state(), JobState::kRunning);
  EXPECT_EQ(Job().cause()->rank, 2);
  EXPECT_THAT(Job().cause()->text, HasSubstr("it computes, and the others wait for it"));
  EXPECT_EQ(cluster_.Sent<StopTrainerMessage>(3).size(), 1u);
  EXPECT_THAT(cluster_.Sent<StopTrainerMessage>(1), IsEmpty());
}

// The trainers' own limit may come first.
TEST_F(HangTest, ATimeOutOfThoseThatWaitIsASymptomOfTheOneThatComputes) {
  Train(3);
  double cpu_ms = 400;
  UntilItStops(absl::Seconds(5), [&](int rank) {
    if (rank != 2) return Waits();
    ProbeReport report = Missing();
    report.reply->thread_cpu_ms = cpu_ms += 100;
    return report;
  });
  for (const int rank : {0, 1}) {
    cluster_.Report(job_, rank, FailedMessage{.reason = "not done in time", .collective = true});
  }
  cluster_.Advance(absl::Seconds(4), kTick);
  EXPECT_EQ(Job().cause()->rank, 2);
  EXPECT_EQ(Job().cause()->kind, "timeout");
  EXPECT_EQ(cluster_.Sent<StopTrainerMessage>(3).size(), 1u);
  EXPECT_THAT(cluster_.Sent<StopTrainerMessage>(1), IsEmpty());
}

// Of a save of half an hour in which one rank writes and the others wait for it, nobody is accused,
// whether it uses its CPU or only its disk: such a phase has its own limit.
TEST_F(HangTest, ALongSaveIsNoHang) {
  Train(3);
  cluster_.Phase(job_, "saving");
  ASSERT_EQ(Job().state(), JobState::kCheckpointing);
  const absl::Time start = cluster_.now();
  while (cluster_.now() - start < absl::Minutes(30)) {
    cluster_.Advance(absl::Milliseconds(500), kTick);
    AnswerProbes([&](int rank) { return rank == 1 ? Missing() : Waits(); });
  }
  EXPECT_FALSE(cluster_.Sent<ProbeOrder>(1).empty());
  EXPECT_EQ(Job().state(), JobState::kCheckpointing);
  EXPECT_EQ(Job().restarts(), 0);
  EXPECT_THAT(Events("hang"), IsEmpty());
  for (int node = 1; node <= kRanks; ++node) {
    EXPECT_THAT(cluster_.Sent<StopTrainerMessage>(node), IsEmpty());
    EXPECT_THAT(cluster_.Sent<AbortBroadcast>(node), IsEmpty());
  }
  // One that is stopped meanwhile is found all the same.
  const absl::Time stopped = cluster_.now();
  while (Job().state() == JobState::kCheckpointing && cluster_.now() - stopped < absl::Minutes(1)) {
    cluster_.Advance(kTick, kTick);
    AnswerProbes([&](int rank) { return rank == 1 ? Stopped() : Waits(); });
  }
  EXPECT_EQ(Job().cause().has_value(), true);
  EXPECT_EQ(Events("condemned").size(), 1u);
}

TEST_F(HangTest, ProgressThatATrainerTellsOfIsNews) {
  Train(3);
  ProbeReport ahead = Waits();
  ahead.reply->iteration = 11;
  bool once = true;
  UntilItStops(absl::Milliseconds(2500), [&](int rank) {
    if (rank == 0) return ahead;
    return rank == 1 && !once ? Stopped() : Waits();
  });
  EXPECT_EQ(Job().state(), JobState::kRunning);
  EXPECT_THAT(Events("hang"), IsEmpty());
}

TEST_F(HangTest, StepsInTimeAreNotLookedAt) {
  Train();
  for (; iteration_ < 40; ++iteration_) {
    cluster_.Advance(absl::Milliseconds(400), kTick);
    Step();
  }
  EXPECT_THAT(cluster_.Sent<ProbeOrder>(1), IsEmpty());
}

TEST_F(HangTest, OneThatIsStoppedWhileTheyFormIsFoundSoonerThanAnythingIsOverdue) {
  Train(3);
  cluster_.Report(job_, 0, ExitedReport{.signal = 9});
  ASSERT_EQ(Job().epoch(), 2);
  cluster_.Phase(job_, "forming");
  const absl::Time start = cluster_.now();
  while (cluster_.now() - start < absl::Seconds(20) && Job().epoch() == 2) {
    cluster_.Advance(kTick, kTick);
    AnswerProbes([&](int rank) { return rank == 1 ? Stopped() : Waits(); });
  }
  EXPECT_EQ(Job().epoch(), 3);
  EXPECT_LE(cluster_.now() - start, absl::Seconds(3));
}

TEST_F(HangTest, ASlowRankIsAnEventWithItsCause) {
  Train();
  for (int round = 0; round < 3; ++round) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool slow = rank == 1;
      cluster_.Report(job_, rank,
                      RankTimesMessage{.steps = 10,
                                       .compute_ms = slow ? 90.0 : 30.0,
                                       .communication_wait_ms = slow ? 1.0 : 60.0,
                                       .data_ms = 1});
    }
    for (int i = 0; i < 30; ++i) {
      cluster_.Advance(absl::Milliseconds(100), kTick);
      Step();
      ++iteration_;
    }
  }
  ASSERT_EQ(Events("straggler").size(), 1u);
  EXPECT_THAT(Events("straggler")[0],
              HasSubstr("rank 1 (worker n2/0, node n2), compute: compute 90.0 ms a step, median of "
                        "the others 30.0 ms"));
  EXPECT_EQ(Job().stragglers().size(), 1u);
}

TEST_F(HangTest, AnAgentThatIsSilentIsKnownWithin1500Milliseconds) {
  Train();
  const absl::Time cut = cluster_.now();
  cluster_.Cut(2);
  while (Events("suspect").empty() && cluster_.now() - cut < absl::Seconds(5)) {
    cluster_.Advance(kTick, kTick);
    cluster_.Beat(1, {{job_, 1, ++iteration_}});  // its trainers go on
  }
  EXPECT_GT(cluster_.now() - cut, absl::Milliseconds(1200));
  EXPECT_LE(cluster_.now() - cut, absl::Milliseconds(1400));
  ASSERT_EQ(Events("suspect").size(), 1u);
  EXPECT_THAT(Events("suspect")[0], HasSubstr("node n2 (workers n2/0): no heartbeat for 1.3"));
  cluster_.Beat(2, {});
  EXPECT_THAT(Events("heard_again"), testing::ElementsAre("node n2 (workers n2/0) is heard again"));
}

TEST_F(HangTest, ALostNodeIsOneEvent) {
  cluster_.Join(1, 2);
  cluster_.Join(2, 2);
  job_ = cluster_.Submit({.world_size = 4});
  cluster_.Phase(job_, "training");
  cluster_.SayGoodbye(2);
  ASSERT_EQ(Events("node_lost").size(), 1u);
  EXPECT_THAT(Events("node_lost")[0], HasSubstr("node n2, workers n2/0-1: its agent left"));
  EXPECT_EQ(Job().cause()->kind, "node_lost");
}

TEST_F(HangTest, WantOfMemoryAndAFullDiskHaveTheirOwnEvents) {
  Train();
  cluster_.Report(
      job_, 0,
      CheckpointMessage{
          .iteration = 10, .path = "/ckpt/iter_10", .error = "write: No space left on device"});
  EXPECT_THAT(Events("disk_full"),
              testing::ElementsAre("/ckpt/iter_10: write: No space left on device"));
  EXPECT_EQ(Job().state(), JobState::kRunning);
  cluster_.Report(job_, 2, ExitedReport{.signal = 9, .oom_killed = true});
  EXPECT_EQ(Events("out_of_memory").size(), 1u);
  EXPECT_EQ(Job().cause()->kind, "out_of_memory");
  EXPECT_THAT(Job().cause()->text,
              HasSubstr("out of memory: the trainer was killed by signal 9 (SIGKILL)"));
}

}  // namespace
}  // namespace muster
