#include "tests/worker/moe/router_support.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

namespace muster {
namespace {

ParameterPtr IdentityWeight(int64_t experts, at::ScalarType dtype) {
  auto weight = std::make_shared<Parameter>();
  weight->name = "router.weight";
  weight->data = at::eye(experts, at::TensorOptions().dtype(dtype)).set_requires_grad(true);
  return weight;
}

// coeff E / (k T^2) sum_i P_i c_i over the rows for which `taken` is not 0.
double BalancingLossOf(const MoeConfig& config, const at::Tensor& scores, const at::Tensor& map,
                       const at::Tensor& taken, double tokens, double coeff) {
  const at::Tensor p = (scores * taken.unsqueeze(1)).sum(0);
  const at::Tensor c = (map * taken.unsqueeze(1)).sum(0);
  return coeff * static_cast<double>(config.num_experts) /
         (static_cast<double>(config.topk) * tokens * tokens) * (p * c).sum().item<double>();
}

}  // namespace

LogitsRouter::LogitsRouter(const MoeConfig& config, at::ScalarType dtype,
                           const ExpertParallel& groups)
    : router(std::make_unique<TopKRouter>(
          TopKRouter::Options{.config = config,
                              .name = "router",
                              .weight = IdentityWeight(config.num_experts, dtype),
                              .bias = nullptr,
                              .groups = groups,
                              .experts = experts.get(),
                              .jitter = at::detail::createCPUGenerator(1)})) {}

MoeConfig RouterConfig(int64_t num_experts, int64_t topk) {
  MoeConfig config;
  config.num_experts = num_experts;
  config.hidden_size = num_experts;
  config.topk = topk;
  config.layer_has_experts = {true};
  return config;
}

at::Tensor RandomLogits(int64_t tokens, int64_t experts, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn({tokens, experts}, generator, at::kDouble).set_requires_grad(true);
}

std::map<std::string, double> SideLossesByDefinition(const MoeConfig& config,
                                                     const at::Tensor& logits_in,
                                                     const RoutedLayout& tokens,
                                                     const at::Tensor& padding) {
  const at::Tensor logits = logits_in.detach().to(at::kDouble);
  const at::Tensor valid = padding.defined() ? padding.logical_not().to(at::kDouble)
                                             : at::ones({logits.size(0)}, at::kDouble);
  at::Tensor scores;
  if (config.score == RouterScore::kSoftmax) {
    scores = at::softmax(logits, 1);
  } else {
    const at::Tensor s = at::sigmoid(logits);
    scores = s / (s.sum(1, true) + 1e-20);
  }
  const at::Tensor choice = std::get<1>(at::topk(scores, config.topk, 1));
  const at::Tensor map = at::zeros_like(scores).scatter_(1, choice, 1.0);
  const double num_valid = valid.sum().item<double>();

  std::map<std::string, double> losses;
  for (const SideLoss& loss : config.side_losses) {
    if (loss.kind != BalancingLoss::kSeqAuxLoss) {
      const bool whole_batch = loss.kind == BalancingLoss::kGlobalAuxLoss;
      losses[whole_batch ? "global_load_balancing_loss" : "load_balancing_loss"] =
          BalancingLossOf(config, scores, map, valid, num_valid, loss.coeff);
      continue;
    }
    const double batch = static_cast<double>(tokens.batch);
    double sum = 0;
    for (int64_t b = 0; b < tokens.batch; ++b) {
      at::Tensor mine = at::zeros_like(valid);
      for (int64_t s = 0; s < tokens.seq; ++s)
        mine[tokens.seq_major ? s * tokens.batch + b : b * tokens.seq + s] = 1.0;
      sum += BalancingLossOf(config, scores, map, mine * valid, num_valid / batch, loss.coeff);
    }
    losses["seq_load_balancing_loss"] = sum / batch;
  }
  if (config.z_loss_coeff != 0) {
    const at::Tensor squares = at::logsumexp(logits, {1}).square();
    losses["z_loss"] = config.z_loss_coeff * (squares * valid).sum().item<double>() / num_valid;
  }
  return losses;
}

double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const double difference =
      (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

}  // namespace muster
