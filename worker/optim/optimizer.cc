#include "worker/optim/optimizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/optim/adam.h"
#include "worker/optim/muon.h"
#include "worker/optim/sgd.h"

namespace muster {
namespace {

kernels::GradFactors FactorsOf(const PreparedStep& prepared) {
  return {.unscale = prepared.unscale, .clip = prepared.clip_coefficient};
}

std::unique_ptr<UpdateRule> MakeAdam(const OptimizerOptions& options) {
  return std::make_unique<Adam>(Adam::Options{
      .beta1 = options.adam_beta1, .beta2 = options.adam_beta2, .eps = options.adam_eps});
}

std::unique_ptr<UpdateRule> MakeRule(const OptimizerOptions& options,
                                     const OptimizerGroups& groups) {
  switch (options.kind) {
    case OptimizerOptions::Kind::kAdam:
      return MakeAdam(options);
    case OptimizerOptions::Kind::kSgd:
      return std::make_unique<Sgd>(Sgd::Options{.momentum = options.sgd_momentum});
    case OptimizerOptions::Kind::kMuon:
      return std::make_unique<Muon>(options.muon, groups.tp, groups.expert_tp);
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(const std::vector<OwnedShard>& shards,
                                                             const GradStatsGroups& groups,
                                                             const OptimizerOptions& options) {
  std::vector<ParameterPtr> params;
  for (const OwnedShard& shard : shards) params.push_back(shard.parameter);
  return Create(params, shards, {.stats = groups}, options);
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const std::vector<ParameterPtr>& params, const std::vector<OwnedShard>& shards,
    const OptimizerGroups& groups, const OptimizerOptions& options) {
  if (options.kind == OptimizerOptions::Kind::kMuon) {
    for (const OwnedShard& shard : shards) {
      if (shard.is_whole()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("Muon needs whole matrices, and this rank owns a part of ",
                       shard.parameter->name, ": set parallel.use_distributed_optimizer=false"));
    }
  }
  ASSIGN_OR_RETURN(std::vector<ParamGroup> param_groups,
                   BuildParamGroups(params, StandardOverrideRules(options.param_groups)));
  OptimizerGroups comms = groups;
  if (!params.empty()) comms.stats.device = params[0]->data.device();
  if (comms.world != nullptr)
    RETURN_IF_ERROR(UniteGroups(*comms.world, comms.stats.device, param_groups));
  return std::unique_ptr<Optimizer>(new Optimizer(shards, comms, options, std::move(param_groups)));
}

Optimizer::Optimizer(std::vector<OwnedShard> shards, const OptimizerGroups& groups,
                     const OptimizerOptions& options, std::vector<ParamGroup> param_groups)
    : shards_(std::move(shards)),
      comms_(groups),
      options_(options),
      rule_(MakeRule(options, groups)),
      scalar_rule_(options.kind == OptimizerOptions::Kind::kMuon ? MakeAdam(options) : nullptr),
      groups_(std::move(param_groups)),
      main_params_(MakeMains(options.layer_wise ? Keep(shards_) : shards_)) {}

absl::Status Optimizer::JoinUnion(Communicator& world) const {
  std::vector<ParamGroup> groups = groups_;
  return UniteGroups(world, comms_.stats.device, groups);
}

UpdateRule& Optimizer::RuleOf(const ParamGroup& group) const {
  return group.identity.optimizer.empty() ? *rule_ : *scalar_rule_;
}

// Layer-wise: deals the parameters out, Muon's groups first, and returns this rank's.
std::vector<OwnedShard> Optimizer::Keep(const std::vector<OwnedShard>& shards) {
  std::unordered_map<const Parameter*, const OwnedShard*> shard_of;
  for (const OwnedShard& shard : shards) shard_of[shard.parameter.get()] = &shard;
  std::vector<OwnedShard> kept;
  for (bool is_expert : {false, true}) {
    Communicator* group = is_expert ? comms_.expert_dp : comms_.dp_cp;
    std::vector<const OwnedShard*> dealt;
    for (bool scalar : {false, true}) {
      for (const ParamGroup& g : groups_) {
        if (g.identity.is_expert != is_expert || g.identity.optimizer.empty() == scalar) continue;
        for (const ParameterPtr& p : g.params) dealt.push_back(shard_of.at(p.get()));
      }
    }
    std::vector<int64_t> numels;
    for (const OwnedShard* shard : dealt) numels.push_back(shard->data.numel());
    const std::vector<int> owners = PingPongOwners(numels, group == nullptr ? 1 : group->size());
    for (size_t i = 0; i < dealt.size(); ++i) {
      (is_expert ? expert_owners_ : dense_owners_)
          .push_back({.data = dealt[i]->data, .owner = owners[i]});
      if (group == nullptr || owners[i] == group->rank()) kept.push_back(*dealt[i]);
    }
  }
  return kept;
}

std::vector<MainParam> Optimizer::MakeMains(const std::vector<OwnedShard>& owned) const {
  std::unordered_map<const Parameter*, size_t> group_of;
  for (size_t g = 0; g < groups_.size(); ++g)
    for (const ParameterPtr& p : groups_[g].params) group_of[p.get()] = g;
  std::vector<std::vector<OwnedShard>> by_group(groups_.size());
  for (const OwnedShard& shard : owned)
    by_group[group_of.at(shard.parameter.get())].push_back(shard);
  std::vector<int> num_states;
  for (const ParamGroup& group : groups_)
    num_states.push_back(static_cast<int>(RuleOf(group).state_names().size()));
  return MakeMainParams(by_group, num_states);
}

absl::StatusOr<PreparedStep> Optimizer::PrepareStep(double loss_scale) {
  PreparedStep prepared{.unscale = 1.0 / loss_scale};
  ASSIGN_OR_RETURN(const GradStats stats,
                   ComputeGradStats(shards_, prepared.unscale, comms_.stats));
  prepared.grad_norm = stats.norm;
  prepared.found_inf = options_.skip_non_finite && stats.found_inf;
  if (prepared.found_inf) return prepared;
  prepared.clip_coefficient = ClipCoefficient(options_.clip_grad, stats.norm);
  if (options_.log_num_zeros_in_grad) {
    ASSIGN_OR_RETURN(
        prepared.num_zeros,
        CountGradZeros(shards_, prepared.unscale * prepared.clip_coefficient, comms_.stats));
  }
  prepared.norm_too_large = stats.norm > options_.grad_norm_skip_threshold;
  // The same on all members of the groups that the rules talk to: they make up one norm.
  if (prepared.norm_too_large) return prepared;
  for (size_t g = 0; g < groups_.size(); ++g) {
    RETURN_IF_ERROR(
        Annotate(RuleOf(groups_[g])
                     .Prepare(main_params_, static_cast<int>(g), groups_[g], FactorsOf(prepared)),
                 "optimizer"));
  }
  return prepared;
}

StepResult Optimizer::CommitStep(const PreparedStep& prepared) {
  if (prepared.found_inf || prepared.norm_too_large) {
    for (const ParamGroup& group : groups_) RuleOf(group).Discard();
    if (prepared.found_inf) return {};
    return {.grad_norm = prepared.grad_norm, .num_zeros = prepared.num_zeros};
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    ++groups_[g].step;
    RuleOf(groups_[g]).Update(main_params_, static_cast<int>(g), groups_[g], FactorsOf(prepared));
  }
  return {.success = true, .grad_norm = prepared.grad_norm, .num_zeros = prepared.num_zeros};
}

absl::Status Optimizer::GatherUpdatedParams() {
  if (!options_.layer_wise) return absl::OkStatus();
  if (comms_.dp_cp != nullptr) RETURN_IF_ERROR(BroadcastFromOwners(dense_owners_, *comms_.dp_cp));
  if (comms_.expert_dp != nullptr)
    RETURN_IF_ERROR(BroadcastFromOwners(expert_owners_, *comms_.expert_dp));
  return absl::OkStatus();
}

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
  std::vector<OwnedShard> shards;
  std::vector<at::Tensor> values;
  for (const MainParam& p : main_params_) {
    shards.push_back(p.shard);
    values.push_back(p.main);
  }
  if (!options_.layer_wise) return ComputeNorm(shards, values, comms_.stats);
  return ComputeNorm(shards, values, comms_.stats, comms_.dp_cp, comms_.expert_dp);
}

std::vector<OptimizerStateTensor> Optimizer::StateTensors() const {
  std::vector<OptimizerStateTensor> tensors;
  for (const MainParam& p : main_params_) {
    const Parameter& parameter = p.parameter();
    OptimizerStateTensor state{.param = parameter.name,
                               .global_shape = parameter.global_shape,
                               .global_offset = parameter.global_offset};
    if (state.global_shape.empty()) {  // not sharded and not said
      state.global_shape = parameter.data.sizes().vec();
      state.global_offset.assign(state.global_shape.size(), 0);
    }
    if (!p.shard.is_whole()) {
      state.local_shape = parameter.data.sizes().vec();
      state.flat_begin = p.shard.in_param.begin;
    }
    auto add = [&](const std::string& kind, const at::Tensor& tensor) {
      state.kind = kind;
      state.tensor = tensor;
      tensors.push_back(state);
    };
    if (p.is_copy) add("main_param", p.main);
    const std::vector<std::string> names = RuleOf(groups_[p.group]).state_names();
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
    const auto find = [&](const GroupIdentity& identity) {
      return std::find_if(states.begin(), states.end(),
                          [&](const auto& state) { return state.identity == identity; });
    };
    auto found = find(group.identity);
    if (found == states.end()) {
      // Whether experts are a group of their own depends on the layout.
      GroupIdentity other = group.identity;
      other.is_expert = !other.is_expert;
      found = find(other);
    }
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
