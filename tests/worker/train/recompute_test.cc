// Activation recomputation by the spec: the trainer's curve is the same, to the bit.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

// Some passes recompute all of their layers, others as the spec says: tensor-parallel ranks agree
// on which.
TEST(RecomputeTrainingTest, PartialCheckpointsLeaveTheCurve) {
  TrainTestRoot root;
  const std::vector<std::string> pp2 = {"parallel.pipeline_model_parallel_size=2",
                                        "model.num_layers=4",
                                        "model.attention_dropout=0.1",
                                        "model.hidden_dropout=0.1",
                                        "training.train_iters=3",
                                        "training.micro_batch_size=1",
                                        "training.global_batch_size=6"};
  const std::vector<std::vector<std::string>> layouts = {
      {"resources.world_size=2"},
      {"resources.world_size=2", "parallel.virtual_pipeline_model_parallel_size=2"},
      {"resources.world_size=4", "parallel.tensor_model_parallel_size=2"}};
  const std::vector<std::vector<std::string>> modes = {
      {"training.num_microbatches_with_partial_activation_checkpoints=1"},
      {"training.num_microbatches_with_partial_activation_checkpoints=0",
       "training.recompute_granularity=selective"},
      {"training.num_microbatches_with_partial_activation_checkpoints=1",
       "training.recompute_granularity=full", "training.recompute_method=block",
       "training.recompute_num_layers=1"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(layout.back());
    const auto settings = With(pp2, layout);
    const auto kept = Train(root.Spec(settings));
    for (const std::vector<std::string>& mode : modes) {
      SCOPED_TRACE(mode.back());
      ExpectSameCurve(Train(root.Spec(With(settings, mode))), kept, 0);
    }
  }
}

// The second forward passes issue their collectives again, in the same order on all ranks.
TEST(RecomputeTrainingTest, CurveIsThatOfARunThatKeepsItsActivations) {
  TrainTestRoot root;
  const std::vector<std::vector<std::string>> layouts = {
      {"resources.world_size=2", "parallel.overlap_grad_reduce=true",
       "parallel.ddp_bucket_size=2000"},
      {"resources.world_size=2", "parallel.use_distributed_optimizer=true",
       "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true",
       "parallel.ddp_bucket_size=2000"},
      {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"},
      {"resources.world_size=2", "parallel.tensor_model_parallel_size=2",
       "parallel.sequence_parallel=true"},
      {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
      {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2",
       "parallel.virtual_pipeline_model_parallel_size=2"}};
  const std::vector<std::vector<std::string>> modes = {
      {"training.recompute_granularity=full", "training.recompute_method=uniform",
       "training.recompute_num_layers=2"},
      {"training.recompute_granularity=full", "training.recompute_method=block",
       "training.recompute_num_layers=1"},
      {"training.recompute_granularity=selective"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(layout[layout.size() - 1]);
    const auto settings = With(layout, {"model.num_layers=4", "model.attention_dropout=0.1",
                                        "model.hidden_dropout=0.1", "training.train_iters=3"});
    const auto kept = Train(root.Spec(settings));
    for (const std::vector<std::string>& mode : modes) {
      SCOPED_TRACE(mode.size() == 1 ? mode[0] : mode[1]);
      ExpectSameCurve(Train(root.Spec(With(settings, mode))), kept, 0);
    }
  }
}

}  // namespace
}  // namespace muster
