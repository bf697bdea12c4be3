// optimizer.grad_norm_skip_threshold: steps whose gradient norm is above it update nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const std::vector<std::vector<std::string>> kLayouts = {
    {"resources.world_size=1"},
    {"resources.world_size=2"},
    {"resources.world_size=4", "parallel.use_distributed_optimizer=true",
     "parallel.num_distributed_optimizer_instances=2"},
    {"resources.world_size=2", "parallel.use_distributed_optimizer=true",
     "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"},
    {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"},
    {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
    {"resources.world_size=2", "optimizer.optimizer=dist_muon"}};

// A skipped step moves nothing but the position in the data: neither the learning rate nor the
// parameters nor their moments. The run is that which passes over these iterations, to the bit.
TEST(SkipThresholdTest, SkippedStepsLeaveParametersMomentsAndScheduleAlone) {
  for (const std::vector<std::string>& layout : kLayouts) {
    SCOPED_TRACE(absl::StrJoin(layout, " "));
    TrainTestRoot root;
    // A learning rate at which gradients grow.
    const auto settings = With(layout, {"training.train_iters=8", "optimizer.lr=0.3",
                                        "schedule.lr_warmup_iters=3", TrainTestRoot::kNoInterval});
    const std::vector<double> norms = GradNorms(Train(root.Spec(settings)));
    ASSERT_THAT(norms, SizeIs(8));
    // The first to be skipped is the first that is larger than the one of step 1, so that there are
    // moments to leave alone.
    size_t first = 1;
    while (first < norms.size() && norms[first] <= norms[0]) ++first;
    ASSERT_LT(first, norms.size()) << absl::StrJoin(norms, " ");
    const double threshold = (norms[0] + norms[first]) / 2;

    const auto steps = Train(
        root.Spec(With(settings, {absl::StrCat("optimizer.grad_norm_skip_threshold=", threshold),
                                  absl::StrCat("checkpoint.save=", root / "skipped")})));
    ASSERT_THAT(steps, SizeIs(8));
    std::vector<StepMessage> updated;
    std::vector<int64_t> skipped;
    for (const StepMessage& step : steps) {
      ASSERT_TRUE(step.grad_norm.has_value()) << "skipped steps report their norm";
      EXPECT_EQ(step.skipped, *step.grad_norm > threshold) << step.iteration;
      EXPECT_EQ(step.consumed_samples, 8 * step.iteration);
      if (step.skipped) {
        skipped.push_back(step.iteration);
      } else {
        updated.push_back(step);
      }
    }
    ASSERT_THAT(skipped, Not(IsEmpty()));
    EXPECT_EQ(skipped[0], static_cast<int64_t>(first) + 1);
    const auto without = Train(root.Spec(With(
        settings, {absl::StrCat("training.iterations_to_skip=[", absl::StrJoin(skipped, ","), "]"),
                   absl::StrCat("checkpoint.save=", root / "without")})));
    ExpectSameCurve(updated, without, 0);
    EXPECT_EQ(TensorFiles(root / "skipped/iter_0000008"),
              TensorFiles(root / "without/iter_0000008"));
  }
}

// It is no overflow: the scaler sees a clean step.
TEST(SkipThresholdTest, TheLossScaleGrowsOverSkippedSteps) {
  TrainTestRoot root;
  const auto steps =
      Train(root.Spec({"training.fp16=true", "training.initial_loss_scale=1024",
                       "training.loss_scale_window=2", "optimizer.grad_norm_skip_threshold=0"}));
  std::vector<double> scales;
  for (const StepMessage& step : steps) {
    EXPECT_TRUE(step.skipped);
    EXPECT_EQ(step.learning_rate, steps[0].learning_rate);
    scales.push_back(step.loss_scale);
  }
  EXPECT_EQ(scales, std::vector<double>({1024, 1024, 2048, 2048, 4096, 4096}));
}

}  // namespace
}  // namespace muster
