#include "worker/parallel/finalize_grads.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "common/base/status.h"

namespace muster {
namespace {

// Flattened together, one reduction a dtype, times `factor`, and back to where they were.
absl::Status ReduceTogether(std::vector<at::Tensor> grads, double factor, Communicator& group) {
  at::NoGradGuard no_grad;
  while (!grads.empty()) {
    const at::ScalarType dtype = grads[0].scalar_type();
    const auto others = std::stable_partition(
        grads.begin(), grads.end(), [&](const auto& grad) { return grad.scalar_type() == dtype; });
    std::vector<at::Tensor> flat;
    for (auto grad = grads.begin(); grad != others; ++grad) flat.push_back(grad->view({-1}));
    at::Tensor together = flat.size() == 1 ? flat[0] : at::cat(flat);
    RETURN_IF_ERROR(group.AllReduce(together, ReduceOp::kSum)->Wait());
    if (factor != 1) together.mul_(factor);
    if (flat.size() > 1) {
      int64_t begin = 0;  // elements
      for (at::Tensor& part : flat) {
        part.copy_(together.narrow(0, begin, part.numel()));
        begin += part.numel();
      }
    }
    grads.erase(grads.begin(), others);
  }
  return absl::OkStatus();
}

// The parts of those gradients that are final on this rank. Their sums of squares are not known any
// more.
template <typename Wanted>
std::vector<at::Tensor> GradsOf(const std::vector<OwnedShard>& shards, const Wanted& wanted) {
  std::vector<at::Tensor> grads;
  for (const OwnedShard& shard : shards) {
    if (!wanted(*shard.parameter)) continue;
    shard.parameter->main_grad_squares.reset();
    grads.push_back(shard.grad);
  }
  return grads;
}

bool IsAveraged(const Parameter& p) { return p.average_gradients_across_tp_domain; }
bool IsSummed(const Parameter& p) {
  return !IsAveraged(p) && (p.sequence_parallel || p.is_qk_layernorm);
}

}  // namespace

absl::Status FinalizeModelGrads(DataParallel& ddp, const ParallelContext& parallel,
                                std::optional<at::Tensor> num_tokens, ExpertState* experts) {
  for (int chunk = 0; chunk < ddp.num_chunks(); ++chunk)
    RETURN_IF_ERROR(Annotate(ddp.FinishGradSync(chunk), "all-grads-sync"));

  Communicator& tp = parallel.Group("tp");
  Communicator& pp = parallel.Group("pp");
  // Of the stages only the first and the last are in an embedding group.
  const bool may_share = pp.size() > 1 && (pp.rank() == 0 || pp.rank() == pp.size() - 1);
  if (tp.size() > 1 || may_share) {
    const std::vector<OwnedShard> shards = ddp.shards();
    if (tp.size() > 1) {
      RETURN_IF_ERROR(Annotate(ReduceTogether(GradsOf(shards, IsSummed), 1, tp),
                               "gradients of replicated parameters"));
      RETURN_IF_ERROR(Annotate(ReduceTogether(GradsOf(shards, IsAveraged), 1.0 / tp.size(), tp),
                               "gradients averaged over tp"));
    }
    if (may_share) {
      const auto shared = [](const Parameter& p) { return p.shared_embedding; };
      RETURN_IF_ERROR(
          Annotate(ReduceTogether(GradsOf(shards, shared), 1, parallel.Group("embedding")),
                   "gradients of the tied word embedding"));
    }
  }

  if (experts != nullptr) RETURN_IF_ERROR(experts->PrepareBiases(parallel));

  if (num_tokens) {
    RETURN_IF_ERROR(Annotate(pp.Broadcast(*num_tokens, pp.size() - 1)->Wait(), "token count"));
    RETURN_IF_ERROR(Annotate(parallel.Group("dp_cp").AllReduce(*num_tokens, ReduceOp::kSum)->Wait(),
                             "token count"));
    const int64_t total = num_tokens->item<int64_t>();
    ddp.ScaleGradients(1.0 / static_cast<double>(std::max<int64_t>(total, 1)));
  }
  return absl::OkStatus();
}

}  // namespace muster
