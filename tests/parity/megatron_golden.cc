#include "tests/parity/megatron_golden.h"

#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/schedule/pipeline_schedule.h"
#include "common/spec/spec_json.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/thread_communicator.h"
#include "worker/data/data_iterator.h"
#include "worker/parallel/finalize_grads.h"
#include "worker/parallel/parameter_slices.h"
#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/gpt_model_provider.h"
#include "worker/train/forward_backward.h"
#include "worker/train/job_state.h"
#include "worker/train/training.h"

namespace muster {
namespace {

// A last stage holds a copy of the tied word embedding.
std::string GoldenName(const Parameter& parameter) {
  return parameter.shared_embedding ? "embedding.word_embeddings.weight" : parameter.name;
}

// The GPT with the golden's weights: each rank takes its shards of its layers.
class GoldenModelProvider final : public ModelProvider {
 public:
  explicit GoldenModelProvider(const MegatronGolden& golden) : golden_(golden) {}
  absl::StatusOr<std::unique_ptr<ModelChunk>> Build(const ModelBuildContext& context) override {
    ASSIGN_OR_RETURN(std::unique_ptr<ModelChunk> chunk, gpt_.Build(context));
    at::NoGradGuard no_grad;
    for (const ParameterPtr& parameter : chunk->parameters()) {
      parameter->data.copy_(ShardOf(golden_.at("param." + GoldenName(*parameter)), *parameter));
      parameters_.push_back(parameter);
    }
    return chunk;
  }
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }

 private:
  const MegatronGolden& golden_;
  GptModelProvider gpt_;
  std::vector<ParameterPtr> parameters_;  // of all chunks of the rank
};

// batch (steps, microbatches, samples, tokens + 1) as samples in this order, which is the one that
// a single data-parallel rank consumes them in.
class GoldenDataset final : public Dataset {
 public:
  explicit GoldenDataset(const at::Tensor& batch) : samples_(batch.flatten(0, 2)) {}
  int64_t size() const override { return samples_.size(0); }
  absl::StatusOr<Batch> Collate(const std::vector<int64_t>& indices) const override {
    std::vector<at::Tensor> rows;
    for (const int64_t index : indices) rows.push_back(samples_[index]);
    const at::Tensor data = at::stack(rows);
    const int64_t tokens = data.size(1) - 1;
    Batch batch;
    batch.tokens = data.narrow(1, 0, tokens).contiguous();
    batch.labels = data.narrow(1, 1, tokens).contiguous();
    batch.loss_mask = at::ones(batch.tokens.sizes());
    batch.position_ids = at::arange(tokens, at::kLong).expand(batch.tokens.sizes()).contiguous();
    return batch;
  }

 private:
  const at::Tensor samples_;
};

class GoldenDatasetProvider final : public DatasetProvider {
 public:
  explicit GoldenDatasetProvider(const MegatronGolden& golden) : golden_(golden) {}
  absl::StatusOr<Datasets> Build(const DatasetRequest&) override {
    return Datasets{.train = std::make_shared<GoldenDataset>(golden_.at("batch"))};
  }

 private:
  const MegatronGolden& golden_;
};

JobSpec GoldenSpec(const MegatronGolden& golden, const std::vector<std::string>& settings) {
  const nlohmann::json& c = golden.document["config"];
  const nlohmann::json& adamw = golden.document["adamw"];
  const at::IntArrayRef batch = golden.at("batch").sizes();
  nlohmann::json spec = {
      {"name", "megatron-golden"},
      {"model",
       {{"num_layers", c["layers"]},
        {"hidden_size", c["hidden"]},
        {"ffn_hidden_size", c["ffn"]},
        {"num_attention_heads", c["heads"]},
        {"num_query_groups", c["groups"]},
        {"seq_length", c["seq"]},
        {"max_position_embeddings", c["seq"]},
        {"position_embedding_type", c["positions"]},
        {"rotary_percent", c["rotary_percent"]},
        {"normalization", c["norm"]},
        {"norm_epsilon", c["eps"]},
        {"swiglu", c["swiglu"]},
        {"add_bias_linear", c["bias"]},
        {"untie_embeddings_and_output_weights", !c["tied"].get<bool>()},
        {"make_vocab_size_divisible_by", 1},
        {"attention_dropout", 0},
        {"hidden_dropout", 0}}},
      {"parallel", {{"distributed_backend", "gloo"}}},
      {"data", {{"dataset_provider", "mock"}}},
      {"training",
       {{"micro_batch_size", batch[2]},
        {"global_batch_size", batch[1] * batch[2]},
        {"train_iters", batch[0]}}},
      {"optimizer",
       {{"lr", adamw["lr"]},
        {"weight_decay", adamw["weight_decay"]},
        {"adam_beta1", adamw["betas"][0]},
        {"adam_beta2", adamw["betas"][1]},
        {"adam_eps", adamw["eps"]},
        {"clip_grad", golden.document["clip_grad"]}}},
      {"schedule", {{"lr_decay_style", "constant"}}},
      {"evaluation", {{"eval_iters", 0}}},
      {"resources", {{"device", "cpu"}}},
  };
  if (c.contains("experts")) {
    spec["model"].update({{"num_experts", c["experts"]},
                          {"moe_router_topk", c["topk"]},
                          {"moe_aux_loss_coeff", c["aux_loss_coeff"]},
                          {"moe_z_loss_coeff", c["z_loss_coeff"]}});
  }
  const auto text = ApplySetOptions(spec.dump(), settings);
  EXPECT_TRUE(text.ok()) << text.status();
  ParsedSpec parsed = ParseJobSpec(*text);
  for (const SpecProblem& problem : parsed.problems) {
    ADD_FAILURE() << "the golden's spec: " << problem.ToString();
  }
  // Below what the byte tokenizer needs: not for a spec, but nothing here reads text.
  parsed.spec.model.vocab_size = c["vocab"].get<int64_t>();
  return parsed.spec;
}

struct Rank {
  std::shared_ptr<GoldenModelProvider> model;
  ScriptedHost host;
  absl::Status status;
};

// The golden's providers, under the names that a spec may give.
ProviderRegistry Providers(const MegatronGolden& golden,
                           std::shared_ptr<GoldenModelProvider> model) {
  ProviderRegistry providers;
  EXPECT_TRUE(providers.AddModelProvider("gpt", std::move(model)).ok());
  EXPECT_TRUE(providers.AddForwardStep("gpt", std::make_shared<GptForwardStep>()).ok());
  EXPECT_TRUE(
      providers.AddDatasetProvider("mock", std::make_shared<GoldenDatasetProvider>(golden)).ok());
  return providers;
}

void RunRank(const MegatronGolden& golden, const JobSpec& spec, CommunicatorPtr world, Rank& rank) {
  const ProviderRegistry providers = Providers(golden, rank.model);
  RealClock clock;
  rank.status = RunTraining({.spec = spec,
                             .world = world,
                             .host = rank.host,
                             .providers = providers,
                             .clock = clock,
                             .epoch = 1})
                    .status();
  if (!rank.status.ok()) world->Abort(std::string(rank.status.message()));
}

}  // namespace

std::vector<double> MegatronGolden::Losses(const std::string& layout) const {
  return document["layouts"][layout]["losses"].get<std::vector<double>>();
}

std::vector<double> MegatronGolden::GradNorms(const std::string& layout) const {
  return document["layouts"][layout]["grad_norms"].get<std::vector<double>>();
}

std::vector<std::map<std::string, double>> MegatronGolden::SideLosses(
    const std::string& layout) const {
  const nlohmann::json& run = document["layouts"][layout];
  if (!run.contains("side_losses")) return {};
  return run["side_losses"].get<std::vector<std::map<std::string, double>>>();
}

MegatronGolden LoadMegatronGolden(const std::string& name) {
  const std::string stem =
      std::string(MUSTER_SOURCE_DIR) + "/tests/golden/megatron/megatron_" + name;
  MegatronGolden golden;
  std::ifstream(stem + ".json") >> golden.document;
  std::ifstream bytes(stem + ".bin", std::ios::binary);
  for (const auto& entry : golden.document["tensors"]) {
    at::Tensor tensor = at::empty(entry["shape"].get<std::vector<int64_t>>(),
                                  entry["dtype"] == "int64" ? at::kLong : at::kFloat);
    bytes.seekg(entry["offset"].get<int64_t>());
    bytes.read(static_cast<char*>(tensor.data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
    MUSTER_CHECK_MSG(bytes.good(), stem);
    golden.tensors[entry["name"].get<std::string>()] = tensor;
  }
  return golden;
}

GoldenRun TrainGolden(const MegatronGolden& golden, const std::vector<std::string>& settings) {
  at::set_num_threads(1);
  const JobSpec spec = GoldenSpec(golden, settings);
  if (testing::Test::HasFailure()) return {};
  const std::vector<CommunicatorPtr> worlds =
      MakeThreadWorld(static_cast<int>(spec.resources.world_size));
  std::vector<Rank> ranks(worlds.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].model = std::make_shared<GoldenModelProvider>(golden);
    threads.emplace_back([&, i] { RunRank(golden, spec, worlds[i], ranks[i]); });
  }
  for (std::thread& thread : threads) thread.join();

  GoldenRun run;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_TRUE(ranks[i].status.ok()) << "rank " << i << ": " << ranks[i].status;
    for (const StepMessage& step : ranks[i].host.All<StepMessage>()) {
      run.losses.push_back(step.lm_loss.value());
      run.grad_norms.push_back(step.grad_norm.value());
      auto& side_losses = run.side_losses.emplace_back();
      for (const auto& [name, value] : kStepSideLosses) {
        if ((step.*value).has_value()) side_losses[name] = *(step.*value);
      }
    }
    for (const ParameterPtr& parameter : ranks[i].model->parameters()) {
      const at::Tensor& like = golden.at("param." + GoldenName(*parameter));
      auto [whole, added] = run.weights.try_emplace(GoldenName(*parameter));
      if (added) whole->second = at::zeros(like.sizes(), parameter->data.options());
      CopyShardInto(parameter->data, *parameter, whole->second);
    }
  }
  return run;
}

std::map<std::string, at::Tensor> FirstGradients(const MegatronGolden& golden,
                                                 const std::vector<std::string>& settings) {
  at::set_num_threads(1);
  const JobSpec spec = GoldenSpec(golden, settings);
  auto model = std::make_shared<GoldenModelProvider>(golden);
  const ProviderRegistry providers = Providers(golden, model);
  const auto state = BuildJobState(spec, providers, MakeSelfCommunicator("world", 0), at::kCPU);
  EXPECT_TRUE(state.ok()) << state.status();
  if (!state.ok()) return {};
  JobState& job = **state;
  const int num_microbatches = static_cast<int>(golden.at("batch").size(1));
  const auto schedule = MakeRankSchedule({.num_microbatches = num_microbatches}, 0);
  const auto data = MakeDataIterator(std::make_shared<GoldenDataset>(golden.at("batch")),
                                     {.micro_batch_size = golden.at("batch").size(2)});
  EXPECT_TRUE(schedule.ok() && data.ok());
  job.ddp->ZeroGradBuffer();
  job.experts->SetSideLossScale(1.0 / num_microbatches);
  const auto passes = RunForwardBackward({.schedule = *schedule,
                                          .num_microbatches = num_microbatches,
                                          .forward_step = *job.forward_step,
                                          .chunks = {job.chunks[0].get()},
                                          .data = {data->get()},
                                          .ddp = job.ddp.get()});
  EXPECT_TRUE(passes.ok()) << passes.status();
  const absl::Status final = FinalizeModelGrads(*job.ddp, job.parallel, std::nullopt);
  EXPECT_TRUE(final.ok()) << final;
  std::map<std::string, at::Tensor> gradients;
  for (const ParameterPtr& parameter : model->parameters()) {
    gradients[parameter->name] = parameter->main_grad.clone();
  }
  return gradients;
}

}  // namespace muster
