// When parameters are gathered behind the forward pass (reference 6.5 and 12.2): the hooks' life.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/parallel/logging_communicator.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::SizeIs;

// What rank 0 of a job of two data-parallel ranks did, in order: G for a gather of the parameters
// (one bucket), A for the agreement that ends a step, B for a barrier. Not the steps' other
// traffic.
std::string Trace(const TrainTestRoot& root, std::vector<std::string> settings,
                  std::vector<StepMessage>* steps = nullptr) {
  for (const char* setting : {"resources.world_size=2", "parallel.use_distributed_optimizer=true",
                              "parallel.overlap_grad_reduce=true"}) {
    settings.push_back(setting);
  }
  auto log = std::make_shared<std::vector<std::string>>();
  const auto ranks = RunJob(
      root.Spec(settings),
      {.wrap = [&](int rank, std::shared_ptr<Communicator> world) -> std::shared_ptr<Communicator> {
        if (rank != 0) return world;
        return std::make_shared<LoggingCommunicator>(std::move(world), log);
      }});
  if (steps != nullptr) *steps = StepsOf(ranks);
  std::string trace;
  for (const std::string& event : *log) {
    if (event == "world max 5") trace += 'A';
    if (event == "world barrier") trace += 'B';
    if (absl::StrContains(event, "dp_cp all_gather") && !absl::StartsWith(event, "tp_dp_cp"))
      trace += 'G';
  }
  return trace;
}

TEST(GatherTest, WithoutOverlapEachUpdateGathers) {
  TrainTestRoot root;
  EXPECT_EQ(Trace(root, {"training.train_iters=3"}), "AGAGAG");
}

TEST(GatherTest, WithOverlapTheNextForwardPassGathersAndTheEndMakesWhole) {
  TrainTestRoot root;
  // The first pass reads the parameters as they are.
  EXPECT_EQ(Trace(root, {"training.train_iters=3", "parallel.overlap_param_gather=true"}),
            "AGAGAG");
  EXPECT_EQ(Trace(root, {"training.train_iters=1", "parallel.overlap_param_gather=true"}), "AG");
}

TEST(GatherTest, EvaluationAndCheckpointsGatherFirstAndTheHooksComeBackBehindABarrier) {
  TrainTestRoot root;
  // After step 2 an evaluation; after step 3 a checkpoint; at the end everything once more, and
  // then a checkpoint and evaluations without hooks.
  EXPECT_EQ(
      Trace(root, {"training.train_iters=4", "parallel.overlap_param_gather=true",
                   "evaluation.eval_interval=2", "evaluation.eval_iters=1",
                   absl::StrCat("checkpoint.save=", root / "ckpt"), "checkpoint.save_interval=3"}),
      "A"       // step 1
      "GAGB"    // step 2, evaluation
      "AG"      // step 3: the parameters are whole already; checkpoint
      "AGBG");  // step 4 likewise, evaluation, end
}

TEST(GatherTest, SkippedStepsPushTheFirstGather) {
  TrainTestRoot root;
  std::vector<StepMessage> steps;
  const std::string trace =
      Trace(root,
            {"training.train_iters=12", "training.fp16=true", "training.initial_loss_scale=524288",
             "training.hysteresis=1", "parallel.overlap_param_gather=true"},
            &steps);
  ASSERT_THAT(steps, SizeIs(12));
  std::string expected;
  bool hooks = false;
  for (const StepMessage& step : steps) {
    expected += hooks ? "GA" : "A";
    hooks = hooks || !step.skipped;
  }
  EXPECT_TRUE(steps.front().skipped);
  EXPECT_FALSE(steps.back().skipped);
  EXPECT_EQ(trace, expected + "G");
}

}  // namespace
}  // namespace muster
