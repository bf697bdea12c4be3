// Orders from outside: every rank acts on them at the end of the same step, once.

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using Kind = Directive::Kind;

constexpr int kRanks = 3;

std::vector<std::string> Settings(const TrainTestRoot& root, int64_t train_iters) {
  return {absl::StrCat("training.train_iters=", train_iters),
          absl::StrCat("resources.world_size=", kRanks),
          "training.micro_batch_size=1",
          "training.global_batch_size=3",
          absl::StrCat("checkpoint.save=", root / "ckpt"),
          "checkpoint.save_interval=1000",
          "evaluation.eval_iters=1"};
}

// What rank 0 told, as "saved 3", "valid 5".
std::vector<std::string> Acts(const ScriptedHost& host) {
  std::vector<std::string> acts;
  for (const TrainerToAgent& message : host.messages) {
    if (const auto* saved = std::get_if<CheckpointMessage>(&message)) {
      EXPECT_TRUE(saved->ok) << saved->error;
      acts.push_back(absl::StrCat("saved ", saved->iteration));
    } else if (const auto* evaluated = std::get_if<EvaluationMessage>(&message)) {
      acts.push_back(absl::StrCat(evaluated->split, " ", evaluated->iteration));
    }
  }
  return acts;
}

// Deliveries with delays, repeats and reordering, different on every rank. The order becomes due at
// the first step by whose end every rank holds it and all before it.
struct Schedule {
  std::vector<std::map<int64_t, std::vector<Directive>>> deliveries;  // by rank
  std::vector<int64_t> due;                                           // by directive
};
Schedule RandomSchedule(const std::vector<Directive>& directives, int64_t steps,
                        std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Schedule schedule;
  schedule.due.assign(directives.size(), 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<int64_t, std::vector<Directive>> mine;
    int64_t held_from = 0;
    for (size_t i = 0; i < directives.size(); ++i) {
      const int64_t first = draw(1, steps - 1);
      mine[first].push_back(directives[i]);
      for (int64_t repeat = draw(0, 2); repeat > 0; --repeat)
        mine[draw(first, steps)].push_back(directives[i]);
      held_from = std::max(held_from, first);
      schedule.due[i] = std::max(schedule.due[i], held_from);
    }
    for (auto& [step, batch] : mine) std::shuffle(batch.begin(), batch.end(), random);
    schedule.deliveries.push_back(std::move(mine));
  }
  return schedule;
}

TEST(DirectivesTest, AllRanksActAtTheSameStepExactlyOnce) {
  TrainTestRoot root;
  constexpr int64_t kSteps = 10;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string spec = root.Spec(Settings(root, kSteps));
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    // Numbers 1 and 2 were applied before this attempt.
    const Kind last[] = {Kind::kStop, Kind::kCheckpointAndStop};
    const std::vector<Directive> directives = {{3, Kind::kCheckpoint, "save"},
                                               {4, Kind::kEvaluate, "look"},
                                               {5, Kind::kCheckpoint, "again"},
                                               {6, last[round % 2], "enough"}};
    const Schedule schedule = RandomSchedule(directives, kSteps, random);
    const auto ranks = RunJob(spec, {.script =
                                         [&](int rank, ScriptedHost& host) {
                                           host.deliveries =
                                               schedule.deliveries[static_cast<size_t>(rank)];
                                         },
                                     .directives_through = 2});
    const auto steps = StepsOf(ranks);
    const int64_t stop = schedule.due[3];
    for (const RankRun& rank : ranks) {
      EXPECT_EQ(rank.iteration, stop);
      EXPECT_EQ(rank.exit_code, 0);
      EXPECT_EQ(rank.reason, "directive 6: enough");
    }
    ASSERT_THAT(steps, SizeIs(stop));
    // An evaluation comes before a save of the same step. Two saves that become due at one step are
    // one, and so is the stop's own.
    std::vector<std::string> expected;
    for (int64_t step = 1; step <= stop; ++step) {
      if (schedule.due[1] == step) expected.push_back(absl::StrCat("valid ", step));
      if (schedule.due[0] == step || schedule.due[2] == step ||
          (step == stop && directives[3].kind == Kind::kCheckpointAndStop)) {
        expected.push_back(absl::StrCat("saved ", step));
      }
    }
    EXPECT_EQ(Acts(*ranks[0].host), expected);
    for (const StepMessage& step : steps) {
      int64_t applied = 2;
      for (size_t i = 0; i < directives.size(); ++i) {
        if (schedule.due[i] <= step.iteration) applied = directives[i].number;
      }
      EXPECT_EQ(step.applied_directive, applied) << "iteration " << step.iteration;
    }
  }
}

TEST(DirectivesTest, ADirectiveThatOneRankLacksWaits) {
  TrainTestRoot root;
  const auto ranks =
      RunJob(root.Spec(Settings(root, 4)), {.script = [](int rank, ScriptedHost& host) {
               if (rank < 2) host.deliveries[1] = {{1, Kind::kStop, "not everywhere"}};
             }});
  EXPECT_THAT(StepsOf(ranks), SizeIs(4));
  EXPECT_EQ(ranks[0].reason, "trained 4 iterations");
}

TEST(DirectivesTest, ANumberThatIsMissingHoldsBackTheLaterOnes) {
  TrainTestRoot root;
  const auto ranks = RunJob(root.Spec(Settings(root, 5)), {.script = [](int, ScriptedHost& host) {
                              host.deliveries[1] = {{2, Kind::kStop, "second"}};
                              host.deliveries[3] = {{1, Kind::kEvaluate, "first"}};
                            }});
  EXPECT_THAT(StepsOf(ranks), SizeIs(3));
  EXPECT_THAT(Acts(*ranks[0].host), ElementsAre("valid 3"));
  EXPECT_EQ(ranks[0].reason, "directive 2: second");
}

TEST(DirectivesTest, ASaveWithoutAFolderIsPassedOver) {
  TrainTestRoot root;
  const auto ranks = RunJob(root.Spec({}), {.script = [](int, ScriptedHost& host) {
                              host.deliveries[1] = {{1, Kind::kCheckpoint, "save"}};
                              host.deliveries[3] = {{2, Kind::kCheckpointAndStop, "enough"}};
                            }});
  EXPECT_THAT(StepsOf(ranks), SizeIs(3));
  EXPECT_THAT(Acts(*ranks[0].host), ElementsAre());
  EXPECT_EQ(ranks[0].exit_code, 0);
}

TEST(ExitTest, ASignalOnOneRankSavesAndStopsAll) {
  TrainTestRoot root;
  const auto script = [](int rank, ScriptedHost& host) {
    if (rank == 2) host.signal_before_step = 3;
  };
  const auto ranks = RunJob(root.Spec(Settings(root, 6)), {.script = script});
  StepsOf(ranks);
  for (const RankRun& rank : ranks) {
    EXPECT_EQ(rank.iteration, 3);
    EXPECT_EQ(rank.exit_code, 0);
    EXPECT_EQ(rank.reason, "exit signal");
  }
  EXPECT_THAT(Acts(*ranks[0].host), ElementsAre("saved 3"));

  auto without = Settings(root, 6);
  without.push_back("training.exit_signal_handler=false");
  without.push_back("evaluation.eval_iters=0");
  EXPECT_THAT(Train(root.Spec(without), {.script = script}), SizeIs(6));
}

TEST(ExitTest, ExitIntervalSavesAndStops) {
  TrainTestRoot root;
  auto settings = Settings(root, 9);
  settings.push_back("training.exit_interval=4");
  const auto ranks = RunJob(root.Spec(settings));
  EXPECT_THAT(StepsOf(ranks), SizeIs(4));
  EXPECT_EQ(ranks[1].reason, "exit_interval 4");
  // Left early: no final evaluation.
  EXPECT_THAT(Acts(*ranks[0].host), ElementsAre("saved 4"));
}

TEST(ExitTest, ExitDurationStopsAllAtTheStepThatBeginsAfterIt) {
  TrainTestRoot root;
  auto settings = Settings(root, 9);
  settings.push_back("training.exit_duration_in_mins=2.5");
  FakeClock clock;
  const auto ranks = RunJob(root.Spec(settings), {.script =
                                                      [&](int rank, ScriptedHost& host) {
                                                        if (rank != 1) return;
                                                        for (int64_t step = 1; step <= 9; ++step) {
                                                          host.before_end_of[step] = [&] {
                                                            clock.Advance(absl::Minutes(1));
                                                          };
                                                        }
                                                      },
                                                  .clock = &clock});
  // 3 minutes have passed when step 4 begins; nobody's wish counts before.
  EXPECT_THAT(StepsOf(ranks), SizeIs(4));
  for (const RankRun& rank : ranks) {
    EXPECT_EQ(rank.iteration, 4);
    EXPECT_EQ(rank.reason, "exit_duration_in_mins 2.5");
  }
  EXPECT_THAT(Acts(*ranks[0].host), ElementsAre("saved 4"));
}

}  // namespace
}  // namespace muster
