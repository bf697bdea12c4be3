#include "worker/optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/optim/adam.h"
#include "worker/optim/sgd.h"

namespace muster {
namespace {

std::unique_ptr<const UpdateRule> MakeRule(const OptimizerOptions& options) {
  if (options.kind == OptimizerOptions::Kind::kSgd)
    return std::make_unique<Sgd>(Sgd::Options{.momentum = options.sgd_momentum});
  return std::make_unique<Adam>(Adam::Options{
      .beta1 = options.adam_beta1, .beta2 = options.adam_beta2, .eps = options.adam_eps});
}

std::vector<std::vector<ParameterPtr>> ParamsOf(const std::vector<ParamGroup>& groups) {
  std::vector<std::vector<ParameterPtr>> params;
  for (const ParamGroup& group : groups) params.push_back(group.params);
  return params;
}

}  // namespace

absl::StatusOr<OptimizerOptions> OptimizerOptions::FromSpec(const JobSpec& spec) {
  OptimizerOptions options{
      .adam_beta1 = spec.optimizer.adam_beta1,
      .adam_beta2 = spec.optimizer.adam_beta2,
      .adam_eps = spec.optimizer.adam_eps,
      .sgd_momentum = spec.optimizer.sgd_momentum,
      .clip_grad = spec.optimizer.clip_grad,
      .log_num_zeros_in_grad = spec.training.log_num_zeros_in_grad,
      .skip_non_finite = spec.training.fp16,
      .param_groups = {.apply_wd_to_qk_layernorm = spec.optimizer.apply_wd_to_qk_layernorm,
                       .decoupled_lr = spec.optimizer.decoupled_lr,
                       .decoupled_min_lr = spec.optimizer.decoupled_min_lr}};
  if (spec.optimizer.optimizer == "sgd") {
    options.kind = Kind::kSgd;
  } else if (spec.optimizer.optimizer != "adam") {
    return absl::UnimplementedError(
        absl::StrCat("optimizer.optimizer=", spec.optimizer.optimizer, ": use adam or sgd"));
  }
  return options;
}

OptimizerGroups OptimizerGroups::Of(const ParallelContext& parallel, const JobSpec& spec) {
  return {.stats = GradStatsGroups::Of(parallel, spec.model.num_experts.has_value()),
          .world = &parallel.world(),
          .tp = &parallel.Group("tp"),
          .expert_tp = &parallel.Group("expert_tp"),
          .dp_cp = &parallel.Group("dp_cp"),
          .expert_dp = &parallel.Group("expert_dp")};
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(const std::vector<OwnedShard>& shards,
                                                             const GradStatsGroups& groups,
                                                             const OptimizerOptions& options) {
  std::vector<ParameterPtr> params;
  for (const OwnedShard& shard : shards) params.push_back(shard.parameter);
  return Create(params, shards, {.stats = groups}, options);
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const std::vector<ParameterPtr>& params, const std::vector<OwnedShard>&,
    const OptimizerGroups& groups, const OptimizerOptions& options) {
  ASSIGN_OR_RETURN(std::vector<ParamGroup> param_groups,
                   BuildParamGroups(params, StandardOverrideRules(options.param_groups)));
  return std::unique_ptr<Optimizer>(
      new Optimizer(params, groups.stats, options, std::move(param_groups)));
}

Optimizer::Optimizer(std::vector<ParameterPtr> params, const GradStatsGroups& stats_groups,
                     const OptimizerOptions& options, std::vector<ParamGroup> groups)
    : params_(std::move(params)),
      stats_groups_(stats_groups),
      options_(options),
      rule_(MakeRule(options)),
      groups_(std::move(groups)),
      main_params_(
          MakeMainParams(ParamsOf(groups_), static_cast<int>(rule_->state_names().size()))) {}

absl::StatusOr<PreparedStep> Optimizer::PrepareStep(double loss_scale) {
  PreparedStep prepared{.unscale = 1.0 / loss_scale};
  ASSIGN_OR_RETURN(const GradStats stats,
                   ComputeGradStats(params_, prepared.unscale, stats_groups_));
  prepared.grad_norm = stats.norm;
  prepared.found_inf = options_.skip_non_finite && stats.found_inf;
  if (prepared.found_inf) return prepared;
  prepared.clip_coefficient = ClipCoefficient(options_.clip_grad, stats.norm);
  if (options_.log_num_zeros_in_grad) {
    ASSIGN_OR_RETURN(
        prepared.num_zeros,
        CountGradZeros(params_, prepared.unscale * prepared.clip_coefficient, stats_groups_));
  }
  return prepared;
}

StepResult Optimizer::CommitStep(const PreparedStep& prepared) {
  if (prepared.found_inf) return {};
  const kernels::GradFactors factors{.unscale = prepared.unscale,
                                     .clip = prepared.clip_coefficient};
  for (size_t g = 0; g < groups_.size(); ++g) {
    ++groups_[g].step;
    rule_->Update(main_params_, static_cast<int>(g), groups_[g], factors);
  }
  return {.success = true, .grad_norm = prepared.grad_norm, .num_zeros = prepared.num_zeros};
}

absl::Status Optimizer::GatherUpdatedParams() { return absl::OkStatus(); }

void Optimizer::SetGroupLr(int group, double lr, double weight_decay) {
  groups_[group].lr = lr;
  groups_[group].weight_decay = weight_decay;
}

double Optimizer::logged_lr() const {
  for (const ParamGroup& group : groups_)
    if (group.default_config) return group.lr;
  return groups_.empty() ? 0 : groups_[0].lr;
}

absl::StatusOr<double> Optimizer::ParamsNorm() const {
  std::vector<ParameterPtr> params;
  std::vector<at::Tensor> values;
  for (const MainParam& p : main_params_) {
    params.push_back(p.parameter);
    values.push_back(p.main);
  }
  return ComputeNorm(params, values, stats_groups_);
}

std::vector<OptimizerStateTensor> Optimizer::StateTensors() const {
  std::vector<OptimizerStateTensor> tensors;
  const std::vector<std::string> names = rule_->state_names();
  for (const MainParam& p : main_params_) {
    auto add = [&](const std::string& kind, const at::Tensor& tensor) {
      std::vector<int64_t> shape = p.parameter->global_shape, offset = p.parameter->global_offset;
      if (shape.empty()) {  // not sharded and not said
        shape = tensor.sizes().vec();
        offset.assign(shape.size(), 0);
      }
      tensors.push_back({kind, p.parameter->name, tensor, std::move(shape), std::move(offset)});
    };
    if (p.is_copy) add("main_param", p.main);
    for (size_t i = 0; i < names.size(); ++i) add(names[i], p.states[i]);
  }
  return tensors;
}

std::vector<OptimizerGroupState> Optimizer::GroupStates() const {
  std::vector<OptimizerGroupState> states;
  for (const ParamGroup& group : groups_) states.push_back({group.identity, group.step});
  return states;
}

absl::Status Optimizer::LoadGroupStates(const std::vector<OptimizerGroupState>& states) {
  std::vector<int64_t> steps;
  for (const ParamGroup& group : groups_) {
    const auto found = std::find_if(states.begin(), states.end(), [&](const auto& state) {
      return state.identity == group.identity;
    });
    if (found == states.end()) {
      return absl::NotFoundError(absl::StrCat(
          "the checkpoint's optimizer has no parameter group with ", group.identity.ToString(),
          ": use the optimizer settings it was saved with, or checkpoint.no_load_optim=true"));
    }
    steps.push_back(found->step);
  }
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].step = steps[g];
  return absl::OkStatus();
}

void Optimizer::MainParamsLoaded() { CopyMainToModel(main_params_); }
void Optimizer::ReloadMainParams() { CopyModelToMain(main_params_); }

}  // namespace muster
