// What training.log_params_norm and log_num_zeros_in_grad report.

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"
#include "tests/worker/train/whole_tensors.h"

namespace muster {
namespace {

using testing::SizeIs;

const std::vector<std::string> kLogged = {"training.log_params_norm=true",
                                          "training.log_num_zeros_in_grad=true"};

// Of the tensors that a checkpoint holds under `prefix`; "": the weights.
double NormOf(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix) {
  double squares = 0;
  for (const auto& [name, tensor] : tensors) {
    if (prefix.empty() ? absl::StartsWith(name, "optimizer.") : !absl::StartsWith(name, prefix))
      continue;
    squares += tensor.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

TEST(NormsTest, ParamsNormIsThatOfWhatIsUpdated) {
  TrainTestRoot root;
  // bf16: of the fp32 main parameters, not of their rounded copies.
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"training.fp64=true", ""}, {"training.bf16=true", "optimizer.main_param."}};
  for (const auto& [precision, prefix] : rows) {
    SCOPED_TRACE(precision);
    const std::string folder = root / precision;
    const auto steps = Train(root.Spec(
        With(kLogged, {precision, "training.train_iters=3",
                       absl::StrCat("checkpoint.save=", folder), "checkpoint.save_interval=1"})));
    ASSERT_THAT(steps, SizeIs(3));
    for (const StepMessage& step : steps) {
      const double norm =
          NormOf(WholeTensors(absl::StrCat(folder, "/iter_000000", step.iteration)), prefix);
      EXPECT_NEAR(*step.params_norm, norm, 1e-12 * norm) << step.iteration;
    }
    EXPECT_NE(*steps[0].params_norm, *steps[2].params_norm);
  }
}

TEST(NormsTest, AnyLayoutReportsTheSame) {
  TrainTestRoot root;
  // Without biases: the gradient of a key's bias is zero but for rounding.
  // Untied, rows of tokens that do not occur have no gradient; tied, the last stage has a copy.
  for (const char* untied : {"true", "false"}) {
    SCOPED_TRACE(untied);
    const auto base =
        With(kLogged, {"training.fp64=true", "model.num_layers=4", "model.add_bias_linear=false",
                       "training.train_iters=3",
                       absl::StrCat("model.untie_embeddings_and_output_weights=", untied)});
    const std::string weights = root / absl::StrCat("weights", untied);
    Train(root.Spec(
        With(base, {absl::StrCat("checkpoint.save=", weights), "checkpoint.save_interval=1000",
                    "training.exit_interval=1", "model.make_vocab_size_divisible_by=8"})));
    const auto train = [&](int tp, const std::vector<std::string>& layout) {
      return Train(root.Spec(
          With(With(base, layout), {absl::StrCat("checkpoint.pretrained_checkpoint=", weights),
                                    absl::StrCat("parallel.tensor_model_parallel_size=", tp),
                                    absl::StrCat("model.make_vocab_size_divisible_by=", 8 / tp)})));
    };
    const auto one = train(1, {});
    ASSERT_THAT(one, SizeIs(3));
    EXPECT_EQ(*one[0].num_zeros > 0, std::string(untied) == "true");
    const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
        {2, {"resources.world_size=2"}},
        {1, {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"}},
        {1, {"resources.world_size=2", "parallel.use_distributed_optimizer=true"}},
        {1,
         {"resources.world_size=4", "parallel.use_distributed_optimizer=true",
          "parallel.num_distributed_optimizer_instances=2"}},
        {2,
         {"resources.world_size=8", "parallel.pipeline_model_parallel_size=2",
          "parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
          "parallel.overlap_param_gather=true"}}};
    for (const auto& [tp, layout] : layouts) {
      SCOPED_TRACE(layout.back());
      const auto steps = train(tp, layout);
      ASSERT_THAT(steps, SizeIs(3));
      for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_NEAR(*steps[i].params_norm, *one[i].params_norm, 1e-10 * *one[i].params_norm);
        EXPECT_EQ(steps[i].num_zeros, one[i].num_zeros);
      }
    }
  }
}

TEST(NormsTest, OnlyWhereAskedFor) {
  TrainTestRoot root;
  for (const StepMessage& step : Train(root.Spec({"training.train_iters=1"}))) {
    EXPECT_FALSE(step.params_norm.has_value());
    EXPECT_FALSE(step.num_zeros.has_value());
  }
}

}  // namespace
}  // namespace muster
