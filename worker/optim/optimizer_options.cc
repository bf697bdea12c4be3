#include "worker/optim/optimizer_options.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/spec/data_sharding.h"

namespace muster {
namespace {

// The spec was validated: a name that is none of the others is the last one.
MuonOptions MuonOptionsOf(const JobSpec& spec) {
  const OptimizerSpec& o = spec.optimizer;
  MuonOptions options{.momentum = o.muon_momentum,
                      .nesterov = o.muon_use_nesterov,
                      .newton_schulz = {.num_steps = static_cast<int>(o.muon_num_ns_steps),
                                        .bf16_iteration = o.muon_matmul_precision == "medium"},
                      .extra_scale = o.muon_extra_scale_factor};
  if (o.muon_coefficient_type == "simple")
    options.newton_schulz.coefficients = NewtonSchulzOptions::Coefficients::kSimple;
  if (o.muon_scale_mode == "unit_rms_norm") {
    options.scale_mode = MuonOptions::ScaleMode::kUnitRmsNorm;
  } else if (o.muon_scale_mode == "shape_scaling") {
    options.scale_mode = MuonOptions::ScaleMode::kShapeScaling;
  }
  if (o.muon_tp_mode == "distributed") {
    options.tp_mode = MuonOptions::TpMode::kDistributed;
  } else if (o.muon_tp_mode == "blockwise") {
    options.tp_mode = MuonOptions::TpMode::kBlockwise;
  }
  if (o.muon_split_qkv) {
    const int64_t heads = spec.model.num_attention_heads;
    const int64_t channels = spec.model.kv_channels.value_or(spec.model.hidden_size / heads);
    const int64_t groups = spec.model.num_query_groups.value_or(heads);
    options.qkv_rows = {heads / groups * channels, channels, channels};
  }
  return options;
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
  if (spec.optimizer.grad_norm_skip_threshold.has_value())
    options.grad_norm_skip_threshold = *spec.optimizer.grad_norm_skip_threshold;
  const std::string& name = spec.optimizer.optimizer;
  if (name == "sgd") options.kind = Kind::kSgd;
  if (name != "muon" && name != "dist_muon") return options;
  if (spec.training.fp16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.optimizer=", name, " cannot run with training.fp16=true: use bf16"));
  }
  if (spec.parallel.use_distributed_optimizer) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.optimizer=", name, " needs whole matrices, and ",
        "parallel.use_distributed_optimizer=true cuts them: use dist_muon without it to spread the "
        "optimizer's state over data-parallel ranks"));
  }
  options.kind = Kind::kMuon;
  options.layer_wise = name == "dist_muon";
  options.muon = MuonOptionsOf(spec);
  options.param_groups.scalar_optimizer = spec.optimizer.muon_scalar_optimizer;
  return options;
}

namespace {

GradStatsGroups StatsGroups(const ParallelContext& parallel, const JobSpec& spec) {
  const DataSharding sharding = DataShardingOf(spec.parallel);
  GradStatsGroups groups = GradStatsGroups::Of(parallel, spec.model.num_experts.has_value(),
                                               /*use_distributed_optimizer=*/sharding.optimizer);
  // No two instances own the same parts.
  if (sharding.optimizer_over_instances) groups.dense = groups.expert = &parallel.world();
  return groups;
}

}  // namespace

OptimizerGroups OptimizerGroups::Of(const ParallelContext& parallel, const JobSpec& spec) {
  return {.stats = StatsGroups(parallel, spec),
          .world = &parallel.world(),
          .tp = &parallel.Group("tp"),
          .expert_tp = &parallel.Group("expert_tp"),
          .dp_cp = &parallel.Group("dp_cp"),
          .expert_dp = &parallel.Group("expert_dp")};
}

}  // namespace muster
