#include "tests/integration/layout_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {

using nlohmann::json;

const std::vector<RealLayout>& RealLayouts() {
  static const std::vector<RealLayout> layouts = {
      {"tp2, sequence parallel",
       2,
       {{"tensor_model_parallel_size", 2}, {"sequence_parallel", true}}},
      {"pp2", 2, {{"pipeline_model_parallel_size", 2}}},
      {"pp2 v2",
       2,
       {{"pipeline_model_parallel_size", 2}, {"virtual_pipeline_model_parallel_size", 2}}},
      {"dp2, distributed optimizer, overlapped",
       2,
       {{"use_distributed_optimizer", true},
        {"overlap_grad_reduce", true},
        {"overlap_param_gather", true},
        {"ddp_bucket_size", 5000}}},
      {"tp2 pp2", 4, {{"tensor_model_parallel_size", 2}, {"pipeline_model_parallel_size", 2}}},
      {"dp2 pp2 v2, distributed optimizer, overlapped",
       4,
       {{"pipeline_model_parallel_size", 2},
        {"virtual_pipeline_model_parallel_size", 2},
        {"use_distributed_optimizer", true},
        {"overlap_grad_reduce", true},
        {"overlap_param_gather", true}}},
      {"cp2, ring", 2, {{"context_parallel_size", 2}}},
      {"cp2, heads exchanged", 2, {{"context_parallel_size", 2}, {"cp_comm_type", "a2a"}}},
      {"dp2, parameters sharded",
       2,
       {{"use_megatron_fsdp", true}, {"data_parallel_sharding_strategy", "optim_grads_params"}}},
  };
  return layouts;
}

const std::vector<RealLayout>& RealExpertLayouts() {
  static const std::vector<RealLayout> layouts = {
      {"ep2", 2, {{"expert_model_parallel_size", 2}}},
      {"tp2 ep2, sequence parallel, whole experts",
       2,
       {{"tensor_model_parallel_size", 2},
        {"sequence_parallel", true},
        {"expert_model_parallel_size", 2},
        {"expert_tensor_parallel_size", 1}}},
      {"tp2 ep2 dp2, sequence parallel",
       4,
       {{"tensor_model_parallel_size", 2},
        {"sequence_parallel", true},
        {"expert_model_parallel_size", 2}}},
      {"dp2, sharded as torch does", 2, {{"use_torch_fsdp2", true}}},
  };
  return layouts;
}

json ExpertModel() {
  return {{"num_experts", 4},          {"moe_aux_loss_coeff", 0.02},
          {"moe_z_loss_coeff", 0.001}, {"moe_token_dispatcher_type", "alltoall"},
          {"add_bias_linear", false},  {"untie_embeddings_and_output_weights", true}};
}

LayoutRuns::LayoutRuns(const std::string& device, const json& training, const json& model)
    : device_(device), training_(training), model_(model) {
  // The weights that all runs start from: two iterations of one process.
  json spec = Spec({"start", 1, json::object()});
  spec["training"]["train_iters"] = 2;
  spec["checkpoint"] = {{"save", folder_ / "start"}, {"save_interval", 1000}};
  EXPECT_EQ(RunSpec("start", spec).size(), 2u);
}

json LayoutRuns::Spec(const RealLayout& layout) const {
  json spec = SmallSpec(layout.world_size, 10);
  json& model = spec["model"];
  model["num_layers"] = 4;
  model["hidden_size"] = 32;
  model["num_attention_heads"] = 4;
  model["vocab_size"] = 512;
  model["make_vocab_size_divisible_by"] = 128;
  model.update(model_);
  spec["training"]["global_batch_size"] = 8;
  spec["training"].update(training_);
  spec["optimizer"]["lr"] = 0.002;
  spec["evaluation"]["eval_iters"] = 0;
  spec["parallel"] = layout.parallel;
  spec["parallel"]["distributed_backend"] = device_ == "cuda" ? "nccl" : "gloo";
  spec["resources"]["device"] = device_;
  return spec;
}

LayoutRuns::Records LayoutRuns::Run(const RealLayout& layout) {
  json spec = Spec(layout);
  spec["checkpoint"] = {{"pretrained_checkpoint", folder_ / "start"}};
  return RunSpec("run", spec);
}

LayoutRuns::Records LayoutRuns::RunSpec(const std::string& name, const json& spec) {
  const std::string path = folder_ / (name + ".json"), metrics = folder_ / (name + ".jsonl");
  PutFileText(path, spec.dump(2));
  PutFileText(metrics, "");
  const Result run = RunCommand(folder_.path(), {Binary("muster"), "local", path, "--state-dir",
                                                 folder_ / "state", "--metrics", metrics});
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  Records records;
  for (const json& record : JsonLines(FileText(metrics))) records[record["iteration"]] = record;
  return records;
}

void LayoutRuns::ExpectSame(const Records& ours, const Records& one, double bound) {
  ASSERT_EQ(one.size(), 10u);
  ASSERT_EQ(ours.size(), one.size());
  for (const auto& [iteration, record] : one) {
    for (const char* field : {"lm_loss", "grad_norm"}) {
      const double a = ours.at(iteration)[field], b = record[field];
      EXPECT_LE(std::abs(a - b), bound * std::max(1.0, std::abs(b)))
          << field << " at iteration " << iteration << ": " << a << " against " << b;
    }
    EXPECT_EQ(ours.at(iteration)["consumed_samples"], record["consumed_samples"]);
  }
}

}  // namespace muster
