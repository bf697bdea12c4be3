#include "worker/moe/router_losses.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "common/base/check.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

int64_t SizeOf(const Communicator* group) { return group == nullptr ? 1 : group->size(); }

// Counts on their way through a group's sum.
class PendingCounts {
 public:
  PendingCounts() = default;
  PendingCounts(at::Tensor counts, Communicator* group) : counts_(std::move(counts)) {
    if (SizeOf(group) > 1) work_ = group->AllReduce(counts_, ReduceOp::kSum);
  }
  bool started() const { return counts_.defined(); }
  const at::Tensor& Wait() const {
    if (work_ != nullptr) WaitOrThrow(work_);
    return counts_;
  }

 private:
  at::Tensor counts_;
  WorkPtr work_;
};

SideLossKind LoggedAs(BalancingLoss kind) {
  switch (kind) {
    case BalancingLoss::kAuxLoss:
      return SideLossKind::kLoadBalancing;
    case BalancingLoss::kSeqAuxLoss:
      return SideLossKind::kSeqLoadBalancing;
    case BalancingLoss::kGlobalAuxLoss:
      return SideLossKind::kGlobalLoadBalancing;
  }
  MUSTER_CHECK(false);
}

// One pass of one router: what its forward leaves for its backward.
class SideLosses {
 public:
  SideLosses(const at::Tensor& logits, const SideLossInput& in)
      : config_(in.config),
        experts_(in.experts),
        topk_(static_cast<double>(in.config.topk)),
        tp_cp_(static_cast<double>(SizeOf(in.groups.tp_cp))),
        tp_dp_cp_(static_cast<double>(SizeOf(in.groups.tp_dp_cp))),
        counting_(logits.options().dtype(at::kDouble).requires_grad(false)),
        logits_(logits) {
    for (const SideLoss& loss : config_.side_losses)
      by_sequence_ |= loss.kind == BalancingLoss::kSeqAuxLoss;
    // Without a loss by sequence all tokens are one.
    if (by_sequence_) {
      tokens_ = in.tokens;
    } else {
      tokens_ = {.batch = 1, .seq = in.tokens.rows(), .seq_major = false};
    }
    if (in.padding.defined()) valid_ = in.padding.logical_not();
    local_tokens_ =
        valid_.defined() ? valid_.sum(at::kDouble) : Number(static_cast<double>(logits.size(0)));
    KeepScores();
    if (!config_.side_losses.empty()) StartCounts(in);
  }

  // d(side losses) / d(logits), scaled; logs their values.
  at::Tensor Gradient() const {
    at::Tensor scale = Number(experts_.side_loss_scale());
    // In this mode all gradients are divided by the number of tokens in the end.
    if (config_.per_token_loss) scale = scale * local_tokens_ * tp_cp_;
    at::Tensor of_rows;  // (.., .., 1): what multiplies each row of the softmax
    if (config_.z_loss_coeff != 0) of_rows = ZLossByRow(scale);
    if (config_.side_losses.empty()) return Softmax().mul_(of_rows).view_as(logits_);

    const at::Tensor by_score = BalancingByScore(scale);
    const at::Tensor mean = scores_.mul(by_score).sum(2, /*keepdim=*/true);
    at::Tensor slope = by_score - mean;  // (d0, d1, E)
    if (config_.score == RouterScore::kSoftmax) {
      if (of_rows.defined()) slope.add_(of_rows);
      return slope.mul_(scores_).view_as(logits_);
    }
    // s = u / U with u = sigmoid(l), U = sum u: dl = u (1 - u) (g - s.g) / U = s (1 - s U)(g - s.g)
    slope.mul_(scores_).mul_(scores_.mul(sum_of_scores_).neg_().add_(1));
    if (of_rows.defined()) slope.add_(Softmax().mul_(of_rows));
    return slope.view_as(logits_);
  }

 private:
  at::Tensor Number(double value) const { return at::scalar_tensor(value, counting_); }

  // (T, n) -> by sequence: (S, B, n) or (B, S, n).
  at::Tensor BySequence(const at::Tensor& rows) const {
    const int64_t outer = tokens_.seq_major ? tokens_.seq : tokens_.batch;
    return rows.view({outer, rows.size(0) / outer, rows.size(1)});
  }
  int64_t seq_dim() const { return tokens_.seq_major ? 0 : 1; }

  // Rows of padding become 0: they take no part in what follows.
  at::Tensor Masked(at::Tensor rows) const {
    return valid_.defined() ? rows.mul_(valid_.unsqueeze(1)) : rows;
  }

  at::Tensor Softmax() const { return BySequence(at::softmax(logits_, 1)); }

  void KeepScores() {
    if (config_.z_loss_coeff != 0) {
      log_sum_ = BySequence(Masked(at::logsumexp(logits_, {1}, /*keepdim=*/true)));
    }
    if (config_.side_losses.empty()) return;
    if (config_.score == RouterScore::kSoftmax) {
      scores_ = BySequence(Masked(at::softmax(logits_, 1)));
      return;
    }
    at::Tensor scores = at::sigmoid(logits_);
    const at::Tensor sum = scores.sum(1, /*keepdim=*/true).add_(1e-20);
    scores_ = BySequence(Masked(scores.div_(sum)));
    sum_of_scores_ = BySequence(sum);
  }

  // Choices of each expert by this rank's tokens: (B, E), B = 1 without a loss by sequence. Whole
  // numbers: their sum does not depend on its order.
  at::Tensor LocalCounts(const at::Tensor& choice) const {
    const int64_t experts = config_.num_experts;
    at::Tensor place = choice;  // in the counts, flat
    if (tokens_.batch > 1) {
      const at::Tensor row = at::arange(choice.size(0), choice.options()).view({choice.size(0), 1});
      const at::Tensor sequence =
          tokens_.seq_major ? row.remainder(tokens_.batch) : row.floor_divide(tokens_.seq);
      place = choice + sequence * experts;
    }
    const at::Tensor each = Masked(at::ones(choice.sizes(), counting_));
    return at::zeros({tokens_.batch * experts}, counting_)
        .scatter_add_(0, place.reshape({-1}), each.view({-1}))
        .view({tokens_.batch, experts});
  }

  void StartCounts(const SideLossInput& in) {
    const at::Tensor counts = LocalCounts(in.choice);
    bool over_tp_cp = false, over_batch = false;
    for (const SideLoss& loss : config_.side_losses)
      (loss.kind == BalancingLoss::kGlobalAuxLoss ? over_batch : over_tp_cp) = true;
    if (over_batch) {
      GlobalExpertCounts& so_far = *in.global_counts;
      const at::Tensor of_pass = counts.sum(0);
      so_far.sum = so_far.sum.defined() ? so_far.sum + of_pass : of_pass;
      ++so_far.microbatches;
      // The sum over ranks of the means so far is the mean of the sums: one reduction, no wait.
      batch_mean_ =
          PendingCounts(so_far.sum / static_cast<double>(so_far.microbatches), in.groups.tp_dp_cp);
      // The number of tokens is that of this microbatch, not of the mean.
      if (valid_.defined()) batch_tokens_ = PendingCounts(of_pass.sum(), in.groups.tp_dp_cp);
    }
    if (over_tp_cp) sequence_counts_ = PendingCounts(counts, in.groups.tp_cp);
  }

  // (d0, d1, 1): 2 coeff / (|tp_cp| T) lse, times `scale`.
  at::Tensor ZLossByRow(const at::Tensor& scale) const {
    const at::Tensor tokens = local_tokens_.clamp_min(1);
    experts_.LogSideLoss(SideLossKind::kZ, log_sum_.square().sum(at::kDouble) / tokens);
    const at::Tensor factor = scale * (2 * config_.z_loss_coeff / tp_cp_) / tokens;
    return log_sum_ * factor.to(log_sum_.scalar_type());
  }

  // (1 or B, E) in the place of scores_' dims: d(balancing losses) / d(scores), times `scale`.
  at::Tensor BalancingByScore(const at::Tensor& scale) const {
    const at::Tensor sums = scores_.sum(seq_dim(), false, at::kDouble);  // (B, E): P
    at::Tensor by_score;                                                 // (1 or B, E)
    for (const SideLoss& loss : config_.side_losses) {
      const Counted counted = CountsOf(loss.kind);
      // E / (k T^2) c, so that coeff times its product with P is the loss
      const at::Tensor weights = counted.counts * (static_cast<double>(config_.num_experts) /
                                                   topk_ / counted.tokens.square());
      experts_.LogSideLoss(LoggedAs(loss.kind), (sums * weights).sum());
      const at::Tensor addend = weights * (scale * loss.coeff);
      by_score = by_score.defined() ? by_score + addend : addend;
    }
    return by_score.to(scores_.scalar_type()).unsqueeze(seq_dim());
  }

  struct Counted {
    at::Tensor counts;  // (1 or B, E)
    at::Tensor tokens;  // T
  };
  Counted CountsOf(BalancingLoss kind) const {
    const double sequences = static_cast<double>(tokens_.batch);
    switch (kind) {
      case BalancingLoss::kAuxLoss: {
        const at::Tensor counts = sequence_counts_.Wait().sum(0, /*keepdim=*/true);
        return {counts, Tokens(counts.sum(), tp_cp_)};
      }
      case BalancingLoss::kSeqAuxLoss: {
        // T is a sequence's share of them; the mean over sequences divides by their number once
        // more.
        const at::Tensor& counts = sequence_counts_.Wait();
        return {counts / sequences, Tokens(counts.sum(), tp_cp_) / sequences};
      }
      case BalancingLoss::kGlobalAuxLoss: {
        const at::Tensor counts = batch_mean_.Wait().unsqueeze(0);
        return {counts,
                Tokens(batch_tokens_.started() ? batch_tokens_.Wait() : at::Tensor(), tp_dp_cp_)};
      }
    }
    MUSTER_CHECK(false);
  }
  // Tokens in a group of `size` ranks, of which `choices` went to any expert.
  at::Tensor Tokens(const at::Tensor& choices, double size) const {
    return valid_.defined() ? choices / topk_ : local_tokens_ * size;
  }

  const MoeConfig config_;
  ExpertState& experts_;
  const double topk_, tp_cp_, tp_dp_cp_;
  const at::TensorOptions counting_;  // fp64 on the logits' device
  const at::Tensor logits_;           // (T, E) fp32 or fp64
  RoutedLayout tokens_;
  bool by_sequence_ = false;
  at::Tensor valid_;         // (T) bool, or undefined: all
  at::Tensor local_tokens_;  // fp64 scalar
  // Rows by sequence (d0, d1, ..).
  at::Tensor scores_, sum_of_scores_;        // (d0, d1, E); (d0, d1, 1), sigmoid only
  at::Tensor log_sum_;                       // (d0, d1, 1), z-loss only
  PendingCounts sequence_counts_;            // (1 or B, E)
  PendingCounts batch_mean_, batch_tokens_;  // (E); scalar, with padding only
};

}  // namespace

at::Tensor SideLossesOp(const at::Tensor& logits, const SideLossInput& input) {
  MUSTER_CHECK(logits.size(0) == input.tokens.rows());
  at::Tensor output;
  std::shared_ptr<SideLosses> losses;
  {
    OpForward forward;
    output = logits.detach();
    const bool wide = logits.scalar_type() == at::kDouble;
    losses =
        std::make_shared<SideLosses>(logits.detach().to(wide ? at::kDouble : at::kFloat), input);
  }
  return RecordOp(output, {logits}, [losses](const TensorList& grads, const NeedsGrad&) {
    const at::Tensor gradient = losses->Gradient();
    if (!grads[0].defined()) return TensorList{gradient};
    return TensorList{gradient.add_(grads[0]).to(grads[0].scalar_type())};
  });
}

}  // namespace muster
