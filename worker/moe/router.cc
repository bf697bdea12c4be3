#include "worker/moe/router.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/base/check.h"
#include "worker/moe/router_capacity.h"
#include "worker/moe/router_choice.h"
#include "worker/ops/autograd_op.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

// What scores are reckoned in.
at::Tensor Wide(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

// Into main_grad, then nothing for autograd; or handed to autograd.
at::Tensor Deliver(Parameter& parameter, const at::Tensor& grad) {
  if (!parameter.main_grad.defined()) return grad.to(parameter.data.scalar_type());
  parameter.AccumulateGrad(grad);
  return {};
}

// x (T, H), weight (E, H), bias (E) or null -> (T, E) in `dtype`. The copies in that type are not
// kept for the backward pass.
at::Tensor GateOp(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias,
                  at::ScalarType dtype) {
  weight->AwaitGather();
  if (bias != nullptr) bias->AwaitGather();
  const at::Tensor bias_data = bias == nullptr ? at::Tensor() : bias->data;
  at::Tensor logits;
  {
    OpForward forward;
    logits = GemmNT(x.to(dtype), weight->data.to(dtype),
                    bias == nullptr ? at::Tensor() : bias->data.to(dtype));
  }
  return RecordOp(logits, {x, weight->data, bias_data},
                  [x, weight, bias](const TensorList& grads, const NeedsGrad& needs) {
                    const at::Tensor dy = grads[0].contiguous();
                    const at::ScalarType wide = dy.scalar_type();
                    TensorList result(3);
                    if (needs[0]) result[0] = GemmNN(dy, weight->data.to(wide)).to(x.scalar_type());
                    if (needs[1]) result[1] = Deliver(*weight, GemmTN(dy, x.to(wide)));
                    if (needs[2]) result[2] = Deliver(*bias, dy.sum(0));
                    return result;
                  });
}

// logits (T, E), choice (T, k) -> the weights of the chosen (T, k), with gradient.
at::Tensor ChosenWeights(const MoeConfig& config, const at::Tensor& logits,
                         const at::Tensor& choice) {
  const at::Tensor chosen = Wide(at::gather(logits, 1, choice));
  const bool of_all = config.sinkhorn ? config.topk > 1 : config.pre_softmax;
  at::Tensor weights;
  if (config.sinkhorn && config.topk == 1) {
    weights = at::sigmoid(chosen);
  } else if (config.score == RouterScore::kSigmoid && !config.sinkhorn) {
    weights = at::sigmoid(chosen);
    if (config.topk > 1) weights = weights / (weights.sum(1, /*keepdim=*/true) + 1e-20);
  } else if (of_all) {
    weights = at::exp(chosen - at::logsumexp(Wide(logits), {1}, /*keepdim=*/true));
  } else {
    weights = at::softmax(chosen, 1);
  }
  if (config.scaling_factor.has_value() && !config.sinkhorn)
    weights = weights * *config.scaling_factor;
  return weights.to(logits.scalar_type());
}

bool HasGlobalLoss(const MoeConfig& config) {
  for (const SideLoss& loss : config.side_losses)
    if (loss.kind == BalancingLoss::kGlobalAuxLoss) return true;
  return false;
}

}  // namespace

TopKRouter::TopKRouter(Options options) : options_(std::move(options)) {
  const MoeConfig& config = options_.config;
  MUSTER_CHECK_MSG(!config.sinkhorn || config.side_losses.empty(),
                   "sinkhorn balances by itself: no balancing losses");
  MUSTER_CHECK(config.jitter == 0 || options_.jitter.defined());
  if (HasGlobalLoss(config)) global_counts_ = options_.experts->AddGlobalCounts();
  if (config.expert_bias) {
    const at::TensorOptions fp32 = options_.weight->data.options().dtype(at::kFloat);
    expert_bias_ = at::zeros({config.num_experts}, fp32.requires_grad(false));
    bias_counts_ = at::zeros_like(expert_bias_);
    options_.experts->AddBias(
        {.name = options_.name + ".expert_bias", .bias = expert_bias_, .counts = bias_counts_});
  }
}

at::Tensor TopKRouter::Gate(const at::Tensor& x) const {
  const MoeConfig& config = options_.config;
  at::ScalarType dtype = x.scalar_type();
  if (config.router_in_fp32) dtype = at::kFloat;
  if (config.router_in_fp64) dtype = at::kDouble;
  at::Tensor seen = x;
  if (config.jitter != 0) {
    const at::Tensor factor = at::empty_like(x, x.options().requires_grad(false))
                                  .uniform_(1 - config.jitter, 1 + config.jitter, options_.jitter);
    seen = x * factor;
  }
  return GateOp(seen, options_.weight, options_.bias, dtype);
}

at::Tensor TopKRouter::Choose(const at::Tensor& logits, bool training) const {
  const MoeConfig& config = options_.config;
  at::Tensor scores = Wide(logits.detach());
  if (config.sinkhorn) {
    return TopkColumns(training ? SinkhornNormalized(scores.to(at::kFloat)) : scores, config.topk);
  }
  if (config.score == RouterScore::kSigmoid) {
    scores = at::sigmoid(scores);
    if (expert_bias_.defined()) scores.add_(expert_bias_);
  } else if (config.pre_softmax) {
    scores = at::softmax(scores, 1);
  }
  if (config.num_groups == 0) return TopkColumns(scores, config.topk);
  return GroupLimitedTopk(scores, config.topk, config.num_groups, config.group_topk);
}

at::Tensor TopKRouter::WithSideLosses(const at::Tensor& logits, const RoutedLayout& tokens,
                                      const at::Tensor& padding, const at::Tensor& choice) const {
  const MoeConfig& config = options_.config;
  if (config.side_losses.empty() && config.z_loss_coeff == 0) return logits;
  // Groups and the bias steer the choice; the losses look at what it would be without them.
  at::Tensor plain = choice;
  if (!config.side_losses.empty() && (config.num_groups != 0 || config.expert_bias)) {
    at::Tensor scores = Wide(logits.detach());
    if (config.score == RouterScore::kSigmoid) scores = at::sigmoid(scores);
    plain = TopkColumns(scores, config.topk);
  }
  return SideLossesOp(logits, {.config = config,
                               .groups = options_.groups,
                               .experts = *options_.experts,
                               .global_counts = global_counts_.get(),
                               .tokens = tokens,
                               .choice = plain,
                               .padding = padding});
}

RoutedTokens TopKRouter::Forward(const at::Tensor& x, const RoutedLayout& tokens,
                                 const at::Tensor& padding, bool training) const {
  const MoeConfig& config = options_.config;
  at::Tensor logits = Gate(x);
  at::Tensor choice;
  {
    at::NoGradGuard no_grad;
    choice = Choose(logits, training);
  }
  const bool recorded = at::GradMode::is_enabled();
  if (training && recorded) logits = WithSideLosses(logits, tokens, padding, choice);

  const at::Tensor weights = ChosenWeights(config, logits, choice);
  const at::Tensor nothing =
      at::zeros({logits.size(0), config.num_experts}, logits.options().requires_grad(false));
  const RoutedTokens routed = WithinCapacity(
      config,
      {.probs = at::scatter(nothing, 1, choice, weights),
       .map =
           at::zeros(nothing.sizes(), nothing.options().dtype(at::kBool)).scatter_(1, choice, 1)});
  if (bias_counts_.defined() && recorded) {
    at::NoGradGuard no_grad;
    const at::Tensor counted =
        padding.defined() ? routed.map.logical_and(padding.logical_not().unsqueeze(1)) : routed.map;
    bias_counts_.add_(counted.sum(0));
  }
  return routed;
}

}  // namespace muster
