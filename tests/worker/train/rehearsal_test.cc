#include "worker/train/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

JobSpec Parse(const std::string& json) { return ParseJobSpec(json).spec; }

// Whatever a job is made of, a spare of it rehearses.
TEST(RehearsalTest, EveryKindOfJobIsRehearsed) {
  TrainTestRoot root;
  RealClock clock;
  for (const Settings& settings :
       {Settings{}, Settings{"training.bf16=true", "model.normalization=RMSNorm"},
        Settings{"training.fp16=true"}, Settings{"training.fp64=true"},
        Settings{"optimizer.optimizer=sgd"}, Settings{"optimizer.optimizer=muon"},
        Settings{"optimizer.optimizer=dist_muon", "resources.world_size=2"},
        Settings{"model.swiglu=true", "model.position_embedding_type=rope",
                 "model.qk_layernorm=true", "model.ffn_hidden_size=32"},
        Settings{"model.num_experts=4", "model.add_bias_linear=false"},
        Settings{"model.num_layers=4", "resources.world_size=4",
                 "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
                 "parallel.sequence_parallel=true"},
        Settings{"rerun.mode=disabled", "checkpoint.save=/nowhere", "checkpoint.save_interval=1"},
        Settings{"schedule.lr_warmup_iters=3", "schedule.min_lr=0.005"}}) {
    SCOPED_TRACE(testing::PrintToString(settings));
    int64_t asked = 0;
    const absl::Status rehearsed =
        Rehearse(Parse(root.Spec(settings)), c10::kCPU, clock, [&asked] { return ++asked < 0; });
    EXPECT_TRUE(rehearsed.ok()) << rehearsed;
    EXPECT_EQ(asked, 2) << "two steps";
  }
}

TEST(RehearsalTest, ItEndsWhenTheProcessIsWanted) {
  TrainTestRoot root;
  RealClock clock;
  int64_t asked = 0;
  EXPECT_TRUE(
      Rehearse(Parse(root.Spec()), c10::kCPU, clock, [&asked] { return ++asked > 0; }).ok());
  EXPECT_EQ(asked, 1);
}

TEST(RehearsalTest, ItsSizeIsNotTheJobs) {
  TrainTestRoot root;
  const JobSpec tiny = RehearsalOf(
      Parse(root.Spec({"model.num_layers=96", "model.hidden_size=12288",
                       "model.num_attention_heads=96", "model.seq_length=8192",
                       "training.train_iters=1000000", "training.global_batch_size=4096"})));
  EXPECT_EQ(tiny.model.num_layers, 1);
  EXPECT_LE(tiny.model.hidden_size, 128);
  EXPECT_LE(tiny.model.seq_length, 256);
  EXPECT_LE(tiny.training.train_iters, 2);
  EXPECT_FALSE(tiny.training.global_batch_size.has_value());
}

}  // namespace
}  // namespace muster
