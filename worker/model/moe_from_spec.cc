#include "worker/model/moe_from_spec.h"

#include "common/spec/per_layer.h"

namespace muster {
namespace {

// Those that weigh something; sinkhorn and none have no loss.
std::vector<SideLoss> SideLossesOf(const ModelSpec& model) {
  std::vector<SideLoss> losses;
  for (size_t i = 0; i < model.moe_router_load_balancing_type.size(); ++i) {
    const std::string& type = model.moe_router_load_balancing_type[i];
    const double coeff = model.moe_aux_loss_coeff[i];
    if (coeff == 0) continue;
    if (type == "aux_loss") losses.push_back({BalancingLoss::kAuxLoss, coeff});
    if (type == "seq_aux_loss") losses.push_back({BalancingLoss::kSeqAuxLoss, coeff});
    if (type == "global_aux_loss") losses.push_back({BalancingLoss::kGlobalAuxLoss, coeff});
  }
  return losses;
}

}  // namespace

MoeConfig MoeConfigOf(const JobSpec& spec, const ResolvedSpec& sizes) {
  const ModelSpec& model = spec.model;
  MoeConfig moe;
  if (!model.num_experts.has_value()) return moe;
  moe.num_experts = *model.num_experts;
  moe.hidden_size = model.hidden_size;
  moe.ffn_hidden_size = model.moe_ffn_hidden_size.value_or(sizes.ffn_hidden_size);
  moe.layer_has_experts = ExpertLayers(model);

  moe.topk = model.moe_router_topk;
  moe.score =
      model.moe_router_score_function == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  moe.pre_softmax = model.moe_router_pre_softmax;
  moe.sinkhorn = model.moe_router_load_balancing_type.front() == "sinkhorn";
  moe.scaling_factor = model.moe_router_topk_scaling_factor;
  moe.num_groups = model.moe_router_num_groups.value_or(0);
  moe.group_topk = model.moe_router_group_topk.value_or(0);
  moe.expert_bias = model.moe_router_enable_expert_bias;
  moe.router_bias = model.add_bias_linear;
  moe.router_in_fp64 = model.moe_router_dtype == "fp64";
  moe.router_in_fp32 = model.moe_router_dtype == "fp32";
  moe.jitter = model.moe_input_jitter_eps.value_or(0);
  moe.side_losses = SideLossesOf(model);
  moe.z_loss_coeff = model.moe_z_loss_coeff.value_or(0);
  moe.per_token_loss = spec.training.calculate_per_token_loss;

  moe.capacity_factor = model.moe_expert_capacity_factor.value_or(0);
  moe.pad_to_capacity = model.moe_pad_expert_input_to_capacity;
  moe.drop_policy =
      model.moe_token_drop_policy == "position" ? DropPolicy::kPosition : DropPolicy::kProbs;

  moe.dispatcher = model.moe_token_dispatcher_type == "alltoall" ? TokenDispatcherType::kAllToAll
                                                                 : TokenDispatcherType::kAllGather;
  moe.grouped_gemm = model.moe_grouped_gemm;
  moe.apply_probs_on_input = model.moe_apply_probs_on_input;
  moe.shared_expert_ffn = model.moe_shared_expert_intermediate_size.value_or(0);
  moe.shared_expert_gate = model.moe_shared_expert_gate;
  moe.shared_expert_overlap = model.moe_shared_expert_overlap;
  return moe;
}

}  // namespace muster
