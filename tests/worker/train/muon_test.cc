// Muon from a spec: any layout trains as one process, the layer-wise form as the plain one, and a
// resumed job as one that never stopped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::SizeIs;

std::vector<std::string> SaveAndLoad(const std::string& folder) {
  return {absl::StrCat("checkpoint.save=", folder), absl::StrCat("checkpoint.load=", folder),
          "checkpoint.save_interval=1000"};
}

// 4 heads in 2 query groups, SwiGLU: every kind of fused weight.
class MuonJobTest : public testing::Test {
 protected:
  const std::vector<std::string> model_ = {"optimizer.optimizer=muon",
                                           "training.fp64=true",
                                           "model.num_attention_heads=4",
                                           "model.num_query_groups=2",
                                           "model.swiglu=true",
                                           "model.ffn_hidden_size=32",
                                           "model.make_vocab_size_divisible_by=8",
                                           "training.train_iters=5",
                                           "optimizer.muon_use_nesterov=true",
                                           "optimizer.weight_decay=0.1"};
  TrainTestRoot root_;
};

TEST_F(MuonJobTest, AnyLayoutEqualsOneProcess) {
  const std::string weights = root_ / "weights";
  Train(root_.Spec(With(model_, {absl::StrCat("checkpoint.save=", weights),
                                 "checkpoint.save_interval=1000", "training.exit_interval=1"})));
  const auto from_weights =
      With(model_, {absl::StrCat("checkpoint.pretrained_checkpoint=", weights)});
  const auto one = Train(root_.Spec(from_weights));
  ASSERT_THAT(one, SizeIs(5));
  const std::vector<std::vector<std::string>> layouts = {
      {"resources.world_size=2"},
      {"resources.world_size=2", "parallel.tensor_model_parallel_size=2",
       "model.make_vocab_size_divisible_by=4"},
      {"resources.world_size=2", "parallel.tensor_model_parallel_size=2",
       "model.make_vocab_size_divisible_by=4", "optimizer.muon_tp_mode=distributed"},
      {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
      {"resources.world_size=2", "optimizer.optimizer=dist_muon"},
      {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
       "model.make_vocab_size_divisible_by=4", "optimizer.optimizer=dist_muon"},
  };
  for (const auto& layout : layouts) {
    SCOPED_TRACE(testing::PrintToString(layout));
    ExpectSameCurve(Train(root_.Spec(With(from_weights, layout))), one, 1e-10);
  }
}

TEST_F(MuonJobTest, LayerWiseEqualsPlainBitForBit) {
  for (const char* dtype : {"training.bf16=true", "training.fp64=true"}) {
    SCOPED_TRACE(dtype);
    for (const char* world : {"resources.world_size=2", "resources.world_size=4"}) {
      const auto settings = With(model_, {"training.fp64=false", dtype, world});
      const auto plain = Train(root_.Spec(settings));
      ASSERT_THAT(plain, SizeIs(5));
      ExpectSameCurve(Train(root_.Spec(With(settings, {"optimizer.optimizer=dist_muon"}))), plain,
                      0);
    }
  }
}

TEST_F(MuonJobTest, ResumeIsExact) {
  for (const std::string name : {"muon", "dist_muon"}) {
    SCOPED_TRACE(name);
    const auto base =
        With(model_, {"training.fp64=false", "training.bf16=true",
                      absl::StrCat("optimizer.optimizer=", name), "resources.world_size=2"});
    const auto unbroken = Train(root_.Spec(With(base, SaveAndLoad(root_ / ("unbroken_" + name)))));
    ASSERT_THAT(unbroken, SizeIs(5));
    const auto broken = With(base, SaveAndLoad(root_ / ("broken_" + name)));
    auto steps = Train(root_.Spec(With(broken, {"training.exit_interval=2"})));
    ASSERT_THAT(steps, SizeIs(2));
    for (const StepMessage& step : Train(root_.Spec(broken))) steps.push_back(step);
    ExpectSameCurve(steps, unbroken, 0);
    EXPECT_EQ(TensorFiles(absl::StrCat(root_ / ("broken_" + name), "/iter_0000005")),
              TensorFiles(absl::StrCat(root_ / ("unbroken_" + name), "/iter_0000005")));
  }
}

// Each state is written by its owner, under names that do not depend on the layout.
TEST_F(MuonJobTest, LayerWiseCheckpointGoesOnInOneProcess) {
  const auto one = Train(root_.Spec(model_));
  ASSERT_THAT(one, SizeIs(5));
  const auto saved = With(model_, SaveAndLoad(root_ / "saved"));
  auto steps = Train(root_.Spec(With(saved, {"training.exit_interval=2", "resources.world_size=4",
                                             "optimizer.optimizer=dist_muon"})));
  ASSERT_THAT(steps, SizeIs(2));
  for (const StepMessage& step : Train(root_.Spec(saved))) steps.push_back(step);
  ExpectSameCurve(steps, one, 1e-10);
}

}  // namespace
}  // namespace muster
