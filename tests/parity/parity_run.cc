#include "tests/parity/parity_run.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/spec/spec_json.h"
#include "worker/comm/self_communicator.h"
#include "worker/provider/builtin.h"
#include "worker/train/checkpointing.h"

namespace muster {
namespace {

const Settings& MatrixModel() {
  static const Settings settings = {
      "model.num_layers=4",        "model.hidden_size=32",
      "model.ffn_hidden_size=64",  "model.num_attention_heads=4",
      "model.vocab_size=512",      "model.make_vocab_size_divisible_by=128",
      "model.init_method_std=0.1", "training.micro_batch_size=1",
      "training.train_iters=10",   "optimizer.lr=0.002",
      "schedule.min_lr=0.0002",    "optimizer.weight_decay=0.1",
      "evaluation.eval_iters=2",   "evaluation.eval_interval=4",
  };
  return settings;
}

// The weights of a checkpoint of any layout, read by one process.
absl::StatusOr<std::map<std::string, std::vector<double>>> ReadWeights(const std::string& folder) {
  ASSIGN_OR_RETURN(const JobSpec spec, SpecOfCheckpoint(folder, std::nullopt));
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  ASSIGN_OR_RETURN(std::unique_ptr<JobState> state,
                   BuildJobState(spec, providers, MakeSelfCommunicator("world", 0), at::kCPU));
  RETURN_IF_ERROR(LoadWeights(*state, folder, std::nullopt));
  std::map<std::string, std::vector<double>> weights;
  for (const ParameterPtr& parameter : ParametersOf(*state)) {
    const at::Tensor values = parameter->data.detach().to(at::kDouble).contiguous();
    const double* const begin = values.const_data_ptr<double>();
    weights[parameter->name].assign(begin, begin + values.numel());
  }
  return weights;
}

void ExpectNear(double a, double b, double bound, const std::string& what) {
  EXPECT_LE(std::abs(a - b), bound * std::max(1.0, std::abs(b)))
      << what << ": " << absl::StrCat(a) << " against " << absl::StrCat(b) << ", apart " << a - b;
}

}  // namespace

Bounds Fp64Bounds() { return {.loss = 1e-10, .grad_norm = 1e-10, .weight = 1e-10}; }
Bounds Fp32Bounds() { return {.loss = 1e-5, .grad_norm = 1e-5, .weight = 10 * 0.01 * 0.002}; }

ParityModel::ParityModel(const Settings& model) : settings_(MatrixModel() + model) {
  const std::string start = root_ / "start";
  const auto steps = StepsOf(RunJob(root_.Spec(
      settings_ + Settings{"training.train_iters=2", "evaluation.eval_iters=0",
                           absl::StrCat("checkpoint.save=", start), TrainTestRoot::kNoInterval})));
  EXPECT_EQ(steps.size(), 2u);
  settings_.push_back(absl::StrCat("checkpoint.pretrained_checkpoint=", start));
}

std::string ParityModel::Spec(const Settings& layout) const {
  return root_.Spec(settings_ + layout);
}

Curve ParityModel::Run(const Settings& layout) {
  const std::string folder = root_ / absl::StrCat("run", ++num_runs_);
  const std::vector<RankRun> ranks = RunJob(Spec(
      layout + Settings{absl::StrCat("checkpoint.save=", folder), TrainTestRoot::kNoInterval}));
  Curve curve;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(ranks[rank].status.ok()) << "rank " << rank << ": " << ranks[rank].status;
    if (!ranks[rank].status.ok()) return curve;
    // One rank speaks for the job, on the last stage.
    for (const auto& step : ranks[rank].host->All<StepMessage>()) curve.steps.push_back(step);
    for (const auto& evaluation : ranks[rank].host->All<EvaluationMessage>()) {
      curve.evaluations.push_back(evaluation);
    }
  }
  auto weights = ReadWeights(folder);
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (weights.ok()) curve.weights = *std::move(weights);
  return curve;
}

void ExpectSame(const Curve& a, const Curve& b, const Bounds& bounds) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("iteration ", b.steps[i].iteration));
    EXPECT_EQ(a.steps[i].iteration, b.steps[i].iteration);
    EXPECT_EQ(a.steps[i].consumed_samples, b.steps[i].consumed_samples);
    EXPECT_EQ(a.steps[i].learning_rate, b.steps[i].learning_rate);
    EXPECT_EQ(a.steps[i].loss_scale, b.steps[i].loss_scale);
    EXPECT_EQ(a.steps[i].skipped, b.steps[i].skipped);
    ASSERT_EQ(a.steps[i].lm_loss.has_value(), b.steps[i].lm_loss.has_value());
    ASSERT_EQ(a.steps[i].grad_norm.has_value(), b.steps[i].grad_norm.has_value());
    if (b.steps[i].lm_loss.has_value()) {
      ExpectNear(*a.steps[i].lm_loss, *b.steps[i].lm_loss, bounds.loss, "loss");
    }
    if (b.steps[i].grad_norm.has_value()) {
      ExpectNear(*a.steps[i].grad_norm, *b.steps[i].grad_norm, bounds.grad_norm, "grad norm");
    }
    // Layouts that agree in their gradients agree in all of them: see ExpertState.
    for (const auto& [name, value] : kStepSideLosses) {
      const std::optional<double>&mine = a.steps[i].*value, &theirs = b.steps[i].*value;
      ASSERT_EQ(mine.has_value(), theirs.has_value()) << name;
      if (theirs.has_value()) ExpectNear(*mine, *theirs, bounds.loss, name);
    }
  }
  ASSERT_EQ(a.evaluations.size(), b.evaluations.size());
  for (size_t i = 0; i < a.evaluations.size(); ++i) {
    EXPECT_EQ(a.evaluations[i].iteration, b.evaluations[i].iteration);
    EXPECT_EQ(a.evaluations[i].split, b.evaluations[i].split);
    ExpectNear(a.evaluations[i].lm_loss, b.evaluations[i].lm_loss, bounds.loss,
               absl::StrCat(b.evaluations[i].split, " loss at ", b.evaluations[i].iteration));
  }
  ASSERT_FALSE(b.weights.empty());
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, theirs] : b.weights) {
    const auto ours = a.weights.find(name);
    ASSERT_NE(ours, a.weights.end()) << name;
    ASSERT_EQ(ours->second.size(), theirs.size()) << name;
    double worst = 0;
    for (size_t i = 0; i < theirs.size(); ++i) {
      // A NaN fails: it is not at most the bound.
      const double apart = std::abs(ours->second[i] - theirs[i]);
      if (!(apart <= worst)) worst = apart;
    }
    EXPECT_TRUE(worst <= bounds.weight) << name << ": a final weight is " << worst << " apart";
  }
}

void ExpectParity(const Settings& model, const std::vector<Layout>& layouts) {
  const struct {
    const char* name;
    Settings settings;
    Bounds bounds;
  } precisions[] = {{"fp64", {"training.fp64=true"}, Fp64Bounds()}, {"fp32", {}, Fp32Bounds()}};
  for (const auto& precision : precisions) {
    SCOPED_TRACE(precision.name);
    ParityModel parity(model + precision.settings);
    const Curve one = parity.Run({});
    ASSERT_EQ(one.steps.size(), 10u);
    ASSERT_LT(one.steps.back().lm_loss.value(), one.steps.front().lm_loss.value());
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(layout.name);
      ExpectSame(parity.Run(layout.settings), one, precision.bounds);
    }
  }
}

}  // namespace muster
