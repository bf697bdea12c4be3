// What the MoE layers need to know of a job (reference 14.4, 14.5): plain values with Megatron's
// names, all layers alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

enum class RouterScore { kSoftmax, kSigmoid };
enum class BalancingLoss { kAuxLoss, kSeqAuxLoss, kGlobalAuxLoss };
enum class DropPolicy { kProbs, kPosition };
enum class TokenDispatcherType { kAllGather, kAllToAll };

struct SideLoss {
  BalancingLoss kind = BalancingLoss::kAuxLoss;
  double coeff = 0;
};

struct MoeConfig {
  int64_t num_experts = 0;  // of the whole layer; 0: the model has dense layers only
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;          // of one expert, whole (before expert tensor parallelism)
  std::vector<bool> layer_has_experts;  // by layer of the whole model (moe_layer_freq)

  int64_t topk = 2;
  RouterScore score = RouterScore::kSoftmax;
  bool pre_softmax = false;
  bool sinkhorn = false;
  std::optional<double> scaling_factor;
  int64_t num_groups = 0, group_topk = 0;  // 0: no groups
  bool expert_bias = false;
  bool router_bias = false;     // a linear bias of the router
  bool router_in_fp64 = false;  // else fp32 with router_in_fp32, else the input's type
  bool router_in_fp32 = false;
  double jitter = 0;
  std::vector<SideLoss> side_losses;  // those with a coefficient that is not 0
  double z_loss_coeff = 0;
  bool per_token_loss = false;  // calculate_per_token_loss

  double capacity_factor = 0;  // 0: nothing is dropped
  bool pad_to_capacity = false;
  DropPolicy drop_policy = DropPolicy::kProbs;

  TokenDispatcherType dispatcher = TokenDispatcherType::kAllGather;
  bool grouped_gemm = false;
  bool apply_probs_on_input = false;
  int64_t shared_expert_ffn = 0;  // 0: none
  bool shared_expert_gate = false;
  bool shared_expert_overlap = false;

  bool HasExperts(int64_t layer) const {
    return num_experts > 0 && layer_has_experts[static_cast<size_t>(layer)];
  }
};

}  // namespace muster
