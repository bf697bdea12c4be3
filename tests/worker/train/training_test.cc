// A job from its first step to its last, and what it says on the way.

#include <cmath>

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

// Names of providers other than the built-in ones are allowed with a plugin only; here the test
// itself registers them.
constexpr char kPlugin[] = "plugin=/plugins/of_the_test.so";

TEST(TrainingTest, EveryStepIsReported) {
  TrainTestRoot root;
  const auto ranks = RunJob(root.Spec({"schedule.lr_decay_style=linear"}));
  const std::vector<StepMessage> steps = StepsOf(ranks);
  EXPECT_EQ(ranks[0].exit_code, 0);
  EXPECT_EQ(ranks[0].reason, "trained 6 iterations");
  ASSERT_THAT(steps, SizeIs(6));
  for (int64_t i = 0; i < 6; ++i) {
    const StepMessage& step = steps[static_cast<size_t>(i)];
    EXPECT_EQ(step.epoch, 1);
    EXPECT_EQ(step.iteration, i + 1);
    EXPECT_EQ(step.consumed_samples, 8 * (i + 1));
    EXPECT_EQ(step.global_batch_size, 8);
    // The next step's: from lr down to min_lr over the 6 iterations.
    EXPECT_NEAR(step.learning_rate, 0.01 - 0.009 * static_cast<double>(i + 1) / 6, 1e-12);
    EXPECT_TRUE(step.lm_loss.has_value());
    EXPECT_GT(step.grad_norm.value_or(0), 0);
    EXPECT_FALSE(step.skipped);
    EXPECT_EQ(step.loss_scale, 1);
    EXPECT_GT(step.elapsed_ms, 0);
    EXPECT_NEAR(step.tokens_per_s, 8 * 16 / (step.elapsed_ms / 1000), 1e-6 * step.tokens_per_s);
    EXPECT_GT(step.tflops_per_device, 0);
    EXPECT_GT(step.memory_bytes, 100000);  // parameters, gradients, moments: 16 bytes x 10,000
    EXPECT_GT(step.timers_ms.at("forward-backward"), 0);
    EXPECT_LE(step.timers_ms.at("forward-backward"), step.elapsed_ms);
  }
  // T*(6h*(2*ffn*L) + 6*(h*3h + h*h)*L + 6*h*V) + Q*6*h*L, reference 12.8: h 16, ffn 64, L 2, V
  // 257.
  const double batch =
      128.0 * (6 * 16 * (2 * 64 * 2) + 6 * (16 * 48 + 16 * 16) * 2 + 6 * 16 * 257) +
      8.0 * 16 * 16 * 6 * 16 * 2;
  EXPECT_EQ(steps[5].num_floating_point_operations_so_far, 6 * batch);
}

TEST(TrainingTest, TheLossOfAnEasyStreamFallsFromLnV) {
  TrainTestRoot root;
  const auto losses = Losses(Train(root.Spec({"training.train_iters=60"})));
  EXPECT_NEAR(losses.front(), std::log(257), 0.1);
  EXPECT_LT(losses.back(), 1.5);
}

TEST(TrainingTest, ARepeatGivesTheSameBits) {
  TrainTestRoot root;
  for (const char* dtype : {"training.bf16=false", "training.bf16=true"}) {
    SCOPED_TRACE(dtype);
    const std::string spec =
        root.Spec({dtype, "model.hidden_dropout=0.1", "model.attention_dropout=0.1",
                   "training.micro_batch_size=1"});
    const auto first = Train(spec);
    const auto second = Train(spec);
    ExpectSameCurve(first, second, 0);
  }
}

std::vector<std::string> Evaluations(const ScriptedHost& host) {
  std::vector<std::string> out;
  for (const EvaluationMessage& message : host.All<EvaluationMessage>()) {
    EXPECT_NEAR(message.ppl, std::exp(message.lm_loss), 1e-6 * message.ppl);
    EXPECT_GT(message.lm_loss, 0);
    out.push_back(
        absl::StrCat(message.split, " ", message.iteration, message.final ? " final" : ""));
  }
  return out;
}

TEST(TrainingTest, EvaluatesAtStartAtTheIntervalAndAtTheEnd) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {"evaluation.eval_interval=4",
                                             "evaluation.eval_iters=2", "evaluation.at_start=true",
                                             "training.train_iters=9"};
  const auto ranks = RunJob(root.Spec(settings));
  const auto steps = StepsOf(ranks);
  EXPECT_THAT(Evaluations(*ranks[0].host),
              ElementsAre("valid 0", "valid 4", "valid 8", "valid 9 final", "test 9 final"));
  const auto evaluations = ranks[0].host->All<EvaluationMessage>();
  EXPECT_NEAR(evaluations.front().lm_loss, std::log(257), 0.1);
  EXPECT_LT(evaluations[2].lm_loss, evaluations[0].lm_loss);

  // Each evaluation reads on where the last one stopped: other data, so another loss of a model
  // that stands still.
  std::vector<std::string> still = settings;
  still.insert(still.end(), {"optimizer.lr=1e-12", "schedule.min_lr=0"});
  const auto still_ranks = RunJob(root.Spec(still));
  const auto still_evaluations = still_ranks[0].host->All<EvaluationMessage>();
  ASSERT_THAT(still_evaluations, SizeIs(5));
  EXPECT_GT(std::abs(still_evaluations[0].lm_loss - still_evaluations[1].lm_loss), 1e-5);
  EXPECT_GT(std::abs(still_evaluations[1].lm_loss - still_evaluations[2].lm_loss), 1e-5);

  // Evaluation leaves no trace in training: neither dropout's draws nor the order of the data.
  const std::vector<std::string> without = {"training.train_iters=9", "model.hidden_dropout=0.1"};
  std::vector<std::string> with = settings;
  with.push_back("model.hidden_dropout=0.1");
  ExpectSameCurve(Train(root.Spec(with)), Train(root.Spec(without)), 0);
}

TEST(TrainingTest, FullValidationReadsEverySampleOnceOverTwoRanks) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {"data.full_validation=true", "training.train_iters=2",
                                             "training.fp64=true"};
  std::vector<std::string> two = settings;
  two.push_back("resources.world_size=2");
  const auto one_rank = RunJob(root.Spec(settings));
  const auto two_ranks = RunJob(root.Spec(two));
  StepsOf(one_rank);
  StepsOf(two_ranks);
  // eval_iters is 0 here: nothing is evaluated, whatever the mode.
  EXPECT_THAT(Evaluations(*one_rank[0].host), ElementsAre());

  auto evaluated = [&](std::vector<std::string> with) {
    with.push_back("evaluation.eval_iters=1");
    const auto ranks = RunJob(root.Spec(with));
    StepsOf(ranks);
    const auto messages = ranks[0].host->All<EvaluationMessage>();
    EXPECT_FALSE(messages.empty());
    return messages.empty() ? 0 : messages[0].lm_loss;
  };
  EXPECT_NEAR(evaluated(settings), evaluated(two), 1e-10);
}

TEST(TrainingTest, SkipTrainOnlyEvaluates) {
  TrainTestRoot root;
  const std::string save = absl::StrCat("checkpoint.save=", root / "ckpt");
  const std::string load = absl::StrCat("checkpoint.load=", root / "ckpt");
  const auto trained =
      RunJob(root.Spec({"evaluation.eval_iters=2", save, "checkpoint.save_interval=6"}));
  const auto only =
      RunJob(root.Spec({"evaluation.eval_iters=2", load, "training.skip_train=true"}));
  StepsOf(trained);
  EXPECT_THAT(StepsOf(only), SizeIs(0));
  EXPECT_EQ(only[0].reason, "evaluated without training");
  EXPECT_EQ(only[0].iteration, 6);
  EXPECT_THAT(Evaluations(*only[0].host), ElementsAre("valid 6 final", "test 6 final"));
  EXPECT_THAT(only[0].host->All<CheckpointMessage>(), SizeIs(0));
  // The same weights on the same test data.
  const auto before = trained[0].host->All<EvaluationMessage>();
  const auto after = only[0].host->All<EvaluationMessage>();
  ASSERT_THAT(before, SizeIs(2));
  ASSERT_THAT(after, SizeIs(2));
  EXPECT_EQ(after[1].lm_loss, before[1].lm_loss);
}

TEST(TrainingTest, IterationsToSkipAreReadAndDropped) {
  TrainTestRoot root;
  const auto ranks = RunJob(root.Spec({"training.iterations_to_skip=[2,3]"}));
  const auto steps = StepsOf(ranks);
  std::vector<int64_t> iterations, consumed;
  for (const StepMessage& step : steps) {
    iterations.push_back(step.iteration);
    consumed.push_back(step.consumed_samples);
  }
  EXPECT_THAT(iterations, ElementsAre(1, 4, 5, 6));
  EXPECT_THAT(consumed, ElementsAre(8, 32, 40, 48));
}

TEST(TrainingTest, ANanOnOneRankEndsAllAndNamesIterationAndRank) {
  TrainTestRoot root;
  const std::string spec = root.Spec(
      {kPlugin, "model.forward_step=nan", "resources.world_size=2", "rerun.rerun_elsewhere=false"});
  // 2 microbatches a step and rank: the 5th is in step 3.
  const auto ranks = RunJob(spec, {.nan_rank = 1, .nan_microbatch = 5});
  for (const RankRun& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 17) << rank.status;
    EXPECT_THAT(rank.reason, AllOf(HasSubstr("iteration 3"), HasSubstr("on rank 1"),
                                   HasSubstr("NaN in the local loss")));
  }
  EXPECT_THAT(ranks[0].host->All<StepMessage>(), SizeIs(2));
}

TEST(TrainingTest, WithoutTheCheckANanIsReportedAndTrainingGoesOn) {
  TrainTestRoot root;
  const auto steps =
      Train(root.Spec({kPlugin, "model.forward_step=nan", "rerun.check_for_nan_in_loss=false"}),
            {.nan_microbatch = 9});
  ASSERT_THAT(steps, SizeIs(6));
  EXPECT_FALSE(steps[2].lm_loss.has_value());
  EXPECT_EQ(steps[2].loss_text, "nan");
}

TEST(TrainingTest, Fp16OverflowSkipsStepsOnAllRanksUntilTheScaleFits) {
  TrainTestRoot root;
  const auto steps = Train(root.Spec({"training.fp16=true", "training.initial_loss_scale=268435456",
                                      "training.hysteresis=1", "training.train_iters=25",
                                      "schedule.lr_warmup_iters=24", "resources.world_size=2"}));
  ASSERT_THAT(steps, SizeIs(25));
  double scale = 268435456;
  double rate = 0;
  int64_t num_skipped = 0;
  for (const StepMessage& step : steps) {
    SCOPED_TRACE(absl::StrCat("iteration ", step.iteration));
    EXPECT_EQ(step.loss_scale, scale);
    EXPECT_EQ(step.consumed_samples, 8 * step.iteration);
    EXPECT_TRUE(step.lm_loss.has_value());
    if (step.skipped) {
      ++num_skipped;
      scale /= 2;
      EXPECT_EQ(step.learning_rate, rate);
    } else {
      EXPECT_GT(step.learning_rate, rate);
    }
    rate = step.learning_rate;
  }
  EXPECT_GT(num_skipped, 2);
  EXPECT_LT(num_skipped, 20);
  EXPECT_LT(Losses(steps).back(), Losses(steps).front());
}

TEST(TrainingTest, DataThatEndsEarlyIsAClearError) {
  TrainTestRoot root;
  const auto ranks =
      RunJob(root.Spec({kPlugin, "data.dataset_provider=short"}), {.short_samples = 20});
  EXPECT_EQ(ranks[0].status.code(), absl::StatusCode::kOutOfRange) << ranks[0].status;
  EXPECT_THAT(std::string(ranks[0].status.message()),
              AllOf(HasSubstr("iteration 3"), HasSubstr("end of data"), HasSubstr("20 samples")));
  EXPECT_THAT(ranks[0].host->All<StepMessage>(), SizeIs(2));
}

TEST(TrainingTest, TooLittleValidationDataIsRefusedBeforeTraining) {
  TrainTestRoot root;
  const auto failure = [&](int64_t samples, const std::string& setting) {
    const auto ranks =
        RunJob(root.Spec({kPlugin, "data.dataset_provider=short", "evaluation.eval_iters=1",
                          "resources.world_size=4", "training.train_iters=1", setting}),
               {.short_samples = 48, .short_valid_samples = samples});
    for (const RankRun& rank : ranks) EXPECT_EQ(rank.status.code(), ranks[0].status.code());
    EXPECT_EQ(ranks[0].host->All<StepMessage>().empty(), !ranks[0].status.ok());
    return std::string(ranks[0].status.message());
  };
  EXPECT_THAT(failure(7, "data.full_validation=false"),
              HasSubstr("the valid data has 7 samples, fewer than one evaluation batch of 8"));
  EXPECT_EQ(failure(8, "data.full_validation=false"), "");
  EXPECT_THAT(failure(3, "data.full_validation=true"),
              HasSubstr("fewer than one for each of 4 data-parallel ranks"));
  // 2, 1, 1 and 1 samples a rank.
  EXPECT_EQ(failure(5, "data.full_validation=true"), "");
}

TEST(TrainingTest, UnknownProvidersAndMissingDataAreErrors) {
  TrainTestRoot root;
  const auto unknown = RunJob(root.Spec({kPlugin, "model.forward_step=gtp"}));
  EXPECT_EQ(unknown[0].status.code(), absl::StatusCode::kNotFound) << unknown[0].status;
  EXPECT_THAT(std::string(unknown[0].status.message()), HasSubstr("gtp"));
  // One rank's failure in the data set's build is every rank's error.
  const auto missing = RunJob(root.Spec(
      {absl::StrCat("data.data_path=[\"", root / "nothing", "\"]"), "resources.world_size=2"}));
  EXPECT_THAT(std::string(missing[0].status.message()), HasSubstr("nothing"));
  EXPECT_FALSE(missing[1].status.ok());
}

}  // namespace
}  // namespace muster
