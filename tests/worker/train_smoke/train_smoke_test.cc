// One short run of a whole job, for the sanitizers: everything of ours that training passes
// through, once. libtorch itself is not instrumented; it never frees what it made for the process,
// so that this runs with detect_leaks=0.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::SizeIs;

TEST(TrainSmokeTest, TwoStepsSavedAndResumed) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {"training.train_iters=2",
                                             "evaluation.eval_iters=1",
                                             "evaluation.eval_interval=1",
                                             "model.hidden_dropout=0.1",
                                             "model.attention_dropout=0.1",
                                             "checkpoint.save_interval=1",
                                             "training.bf16=true",
                                             absl::StrCat("checkpoint.save=", root / "ckpt"),
                                             absl::StrCat("checkpoint.load=", root / "ckpt")};
  auto first = settings;
  first.push_back("training.exit_interval=1");
  EXPECT_THAT(Train(root.Spec(first)), SizeIs(1));
  const auto ranks = RunJob(root.Spec(settings));
  EXPECT_THAT(StepsOf(ranks), SizeIs(1));
  EXPECT_EQ(ranks[0].reason, "trained 2 iterations");
  EXPECT_THAT(ranks[0].host->All<EvaluationMessage>(), SizeIs(3));
}

}  // namespace
}  // namespace muster
