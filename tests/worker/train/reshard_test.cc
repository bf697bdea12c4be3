// A checkpoint saved by one layout, loaded by another and saved again, holds the same bits:
// weights, main parameters and moments.

#include <map>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"
#include "tests/worker/train/whole_tensors.h"

namespace muster {
namespace {

using testing::SizeIs;

// A layout: what of the spec differs from one process.
const std::map<std::string, std::vector<std::string>> kLayouts = {
    {"one", {}},
    {"dp2", {"resources.world_size=2"}},
    {"tp2", {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"}},
    {"tp4",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=4",
      "parallel.sequence_parallel=true"}},
    {"pp2", {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"}},
    {"pp2v2",
     {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2",
      "parallel.virtual_pipeline_model_parallel_size=2"}},
    {"pp2uneven",
     {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2",
      "parallel.decoder_last_pipeline_num_layers=1"}},
    {"dist2", {"resources.world_size=2", "parallel.use_distributed_optimizer=true"}},
    {"dist4",
     {"resources.world_size=4", "parallel.use_distributed_optimizer=true",
      "parallel.ddp_bucket_size=3000", "parallel.overlap_grad_reduce=true",
      "parallel.overlap_param_gather=true"}},
    {"dist4in2",
     {"resources.world_size=4", "parallel.use_distributed_optimizer=true",
      "parallel.num_distributed_optimizer_instances=2"}},
    {"tp2dist2",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
      "parallel.use_distributed_optimizer=true"}},
    {"tp2pp2dist2",
     {"resources.world_size=8", "parallel.tensor_model_parallel_size=2",
      "parallel.pipeline_model_parallel_size=2", "parallel.use_distributed_optimizer=true"}},
    // Parameters and gradients are sharded too.
    {"zero2",
     {"resources.world_size=2", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads"}},
    {"zero3",
     {"resources.world_size=4", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params"}},
    {"zero3in2",
     {"resources.world_size=4", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params",
      "parallel.num_distributed_optimizer_instances=2",
      "parallel.outer_dp_sharding_strategy=optim"}},
    {"tp2pp2zero3",
     {"resources.world_size=8", "parallel.tensor_model_parallel_size=2",
      "parallel.pipeline_model_parallel_size=2", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params"}},
    // Muon's momentum, and Adam's moments of what is not a matrix; whole parameters by owner.
    {"muon", {"optimizer.optimizer=muon"}},
    {"dist_muon", {"resources.world_size=2", "optimizer.optimizer=dist_muon"}},
    {"tp2dist_muon",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
      "optimizer.optimizer=dist_muon"}},
};

std::vector<std::string> SettingsOf(const std::string& layout) {
  const std::vector<std::string>& settings = kLayouts.at(layout);
  int tp = 1;
  for (const std::string& setting : settings) {
    for (int n : {2, 4}) {
      if (setting == absl::StrCat("parallel.tensor_model_parallel_size=", n)) tp = n;
    }
  }
  std::vector<std::string> all = settings;
  all.push_back(absl::StrCat("model.make_vocab_size_divisible_by=", 8 / tp));
  return all;
}

class ReshardTest : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  // Trains 2 iterations in `layout` (or goes on from `load`, where nothing is left to do) and
  // returns the folder of the checkpoint at the end.
  std::string Save(const std::string& layout, const std::string& load) {
    const std::string folder = root_ / absl::StrCat(layout, load.empty() ? "" : "_again");
    std::vector<std::string> settings = SettingsOf(layout);
    for (const char* setting :
         {"training.bf16=true", "model.num_layers=4", "model.num_attention_heads=4",
          "model.swiglu=true", "model.ffn_hidden_size=64", "training.train_iters=2",
          "checkpoint.save_interval=1000"}) {
      settings.push_back(setting);
    }
    settings.push_back(absl::StrCat("checkpoint.save=", folder));
    if (!load.empty()) settings.push_back(absl::StrCat("checkpoint.load=", load));
    EXPECT_THAT(Train(root_.Spec(settings)), SizeIs(load.empty() ? 2 : 0));
    return folder;
  }

  TrainTestRoot root_;
};

TEST_P(ReshardTest, EveryTensorSurvivesBitForBit) {
  const auto& [from, to] = GetParam();
  const std::string saved = Save(from, "");
  const std::string again = Save(to, saved);
  const auto before = WholeTensors(absl::StrCat(saved, "/iter_0000002"));
  const auto after = WholeTensors(absl::StrCat(again, "/iter_0000002"));
  ASSERT_FALSE(before.empty());
  ASSERT_EQ(before.size(), after.size());
  // Word and position embeddings, the final norm's two, and 12 of each layer: each of them as
  // weight, main parameter and two moments; one moment where Muon manages it, the 4 matrices of
  // each layer and the position embedding.
  const bool muon = std::string(from).find("muon") != std::string::npos;
  EXPECT_EQ(before.size(), 4u * (2 + 2 + 4 * 12) - (muon ? 4 * 4 + 1 : 0));
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, after.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ReshardTest,
    testing::Values(std::pair("one", "tp2pp2dist2"), std::pair("tp2pp2dist2", "one"),
                    std::pair("tp2", "tp4"), std::pair("tp4", "pp2v2"), std::pair("pp2", "tp2"),
                    std::pair("pp2v2", "pp2uneven"), std::pair("pp2uneven", "dist2"),
                    std::pair("dist2", "dist4"), std::pair("dist4", "tp2dist2"),
                    std::pair("dist4in2", "pp2"), std::pair("tp2dist2", "dist4in2"),
                    std::pair("tp2dist2", "pp2v2"), std::pair("dp2", "tp2pp2dist2"),
                    std::pair("one", "tp2pp2zero3"), std::pair("tp2pp2zero3", "zero2"),
                    std::pair("zero2", "zero3in2"), std::pair("zero3in2", "zero3"),
                    std::pair("zero3", "tp2pp2dist2"), std::pair("pp2v2", "zero3"),
                    std::pair("dist_muon", "muon"), std::pair("muon", "tp2dist_muon"),
                    std::pair("tp2dist_muon", "dist_muon")),
    [](const auto& info) { return absl::StrCat(info.param.first, "_to_", info.param.second); });

}  // namespace
}  // namespace muster
