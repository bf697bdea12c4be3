#include "worker/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

template <class T>
void DirectionPiece(const MainParam& param, int64_t begin, int64_t count,
                    const kernels::MuonScalars& s, const kernels::GradFactors& f, at::Tensor& d) {
  const PieceView<T> piece(param, begin, count);
  kernels::MuonDirection(piece.state(0), piece.grad(), d.mutable_data_ptr<T>() + begin, count, s,
                         f);
}

template <class T>
void ApplyPiece(const MainParam& param, int64_t begin, int64_t count, const at::Tensor& update,
                const kernels::MuonScalars& s, const kernels::GradFactors& f) {
  const PieceView<T> piece(param, begin, count);
  kernels::MuonUpdate(piece.main(), piece.state(0), piece.grad(),
                      update.const_data_ptr<T>() + begin, count, s, f);
  piece.StoreModel();
}

at::Tensor GradOnDevice(const MainParam& param, const kernels::GradFactors& f) {
  return param.grad().to(param.main.scalar_type()).mul(f.unscale).mul_(f.clip);
}

using PartFn = std::function<absl::StatusOr<at::Tensor>(const at::Tensor&)>;

// Query, key and value rows of a fused weight, each as a matrix of its own, through `fn`, and back
// to their places. Rows are (query group, query heads | key | value, channel).
absl::StatusOr<at::Tensor> ForEachOfQkv(const at::Tensor& d, const std::vector<int64_t>& rows,
                                        const PartFn& fn) {
  const int64_t rows_per_group = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  MUSTER_CHECK_MSG(d.size(0) % rows_per_group == 0, "a fused qkv weight holds whole query groups");
  const at::Tensor grouped = d.view({-1, rows_per_group, d.size(1)});
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (int64_t count : rows) {
    const at::Tensor part = grouped.narrow(1, first, count).reshape({-1, d.size(1)}).contiguous();
    ASSIGN_OR_RETURN(const at::Tensor update, fn(part));
    parts.push_back(update.view({-1, count, d.size(1)}));
    first += count;
  }
  return at::cat(parts, 1).view(d.sizes());
}

}  // namespace

double MuonScale(MuonOptions::ScaleMode mode, int64_t rows, int64_t cols) {
  const double r = static_cast<double>(rows), c = static_cast<double>(cols);
  switch (mode) {
    case MuonOptions::ScaleMode::kSpectral:
      return std::sqrt(std::max(r, c));
    case MuonOptions::ScaleMode::kUnitRmsNorm:
      return std::sqrt(r / c);
    case MuonOptions::ScaleMode::kShapeScaling:
      return std::sqrt(std::max(1.0, r / c));
  }
  MUSTER_CHECK(false);
}

Muon::Muon(MuonOptions options, Communicator* tp, Communicator* expert_tp)
    : options_(std::move(options)), tp_(tp), expert_tp_(expert_tp) {}

Communicator* Muon::SplitOver(const MainParam& param) const {
  const Parameter& p = param.parameter();
  if (options_.tp_mode == MuonOptions::TpMode::kBlockwise) return nullptr;
  if (!p.tensor_model_parallel || p.partition_dim < 0) return nullptr;
  Communicator* group = p.allreduce ? tp_ : expert_tp_;
  return group != nullptr && group->size() > 1 ? group : nullptr;
}

bool Muon::IsFusedQkv(const MainParam& param) const {
  return !options_.qkv_rows.empty() && absl::EndsWith(param.parameter().name, "linear_qkv.weight");
}

at::Tensor Muon::Direction(const MainParam& param, const kernels::GradFactors& factors) const {
  const kernels::MuonScalars scalars{.momentum = options_.momentum, .nesterov = options_.nesterov};
  if (!param.main.is_cpu()) {
    const at::Tensor g = GradOnDevice(param, factors);
    const double beta = options_.momentum;
    at::Tensor m = param.states[0].mul(beta).add_(g, 1 - beta);
    return options_.nesterov ? m.mul_(beta).add_(g, 1 - beta) : m;
  }
  at::Tensor d = at::empty_like(param.main);
  ForEachPieceOf(param, [&](const MainParam& p, int64_t begin, int64_t count) {
    if (p.main.scalar_type() == at::kDouble) {
      DirectionPiece<double>(p, begin, count, scalars, factors, d);
    } else {
      DirectionPiece<float>(p, begin, count, scalars, factors, d);
    }
  });
  return d;
}

at::Tensor Muon::Orthogonalise(const MainParam& param, const at::Tensor& d) const {
  const PartFn whole = [&](const at::Tensor& part) -> absl::StatusOr<at::Tensor> {
    const double scale = MuonScale(options_.scale_mode, part.size(0), part.size(1));
    return NewtonSchulz(part, options_.newton_schulz).mul_(scale * options_.extra_scale);
  };
  return IsFusedQkv(param) ? *ForEachOfQkv(d, options_.qkv_rows, whole) : *whole(d);
}

absl::StatusOr<at::Tensor> Muon::OrthogonaliseSplit(const MainParam& param, const at::Tensor& d,
                                                    Communicator& group) const {
  const bool by_rows = param.parameter().partition_dim == 0;
  const PartFn split = [&](const at::Tensor& part) -> absl::StatusOr<at::Tensor> {
    const double scale = MuonScale(options_.scale_mode, part.size(0) * (by_rows ? group.size() : 1),
                                   part.size(1) * (by_rows ? 1 : group.size()));
    ASSIGN_OR_RETURN(at::Tensor o, NewtonSchulzSplit(by_rows ? part.t().contiguous() : part,
                                                     options_.newton_schulz, group));
    if (by_rows) o = o.t().contiguous();
    return o.mul_(scale * options_.extra_scale);
  };
  if (!IsFusedQkv(param)) return split(d);
  return ForEachOfQkv(d, options_.qkv_rows, split);
}

absl::Status Muon::Prepare(const std::vector<MainParam>& params, int index, const ParamGroup&,
                           const kernels::GradFactors& factors) {
  at::NoGradGuard no_grad;
  std::vector<const MainParam*> split;
  for (const MainParam& p : params)
    if (p.group == index && SplitOver(p) != nullptr) split.push_back(&p);

  if (options_.tp_mode == MuonOptions::TpMode::kDistributed) {
    for (const MainParam* p : split) {
      ASSIGN_OR_RETURN(at::Tensor update,
                       OrthogonaliseSplit(*p, Direction(*p, factors), *SplitOver(*p)));
      updates_[&p->parameter()] = std::move(update);
    }
    return absl::OkStatus();
  }

  // Duplicated. The next matrix travels while this one is orthogonalised.
  struct Gather {
    at::Tensor all;  // (tp, this rank's rows, this rank's cols)
    WorkPtr work;
  };
  auto start = [&](size_t i) -> Gather {
    if (i >= split.size()) return {};
    const MainParam& p = *split[i];
    Communicator& group = *SplitOver(p);
    const at::Tensor d = Direction(p, factors);
    Gather gather{.all = at::empty({group.size(), d.size(0), d.size(1)}, d.options())};
    gather.work = group.AllGather(gather.all, d);
    return gather;
  };
  Gather next = start(0);
  for (size_t i = 0; i < split.size(); ++i) {
    const MainParam& p = *split[i];
    const Gather gather = std::exchange(next, start(i + 1));
    RETURN_IF_ERROR(gather.work->Wait());
    // Shards one after the other. Where a weight has several blocks (partition_stride) its rows
    // then are in another order than the whole tensor's, which does not matter: orthogonalising a
    // matrix with its rows exchanged gives the same rows exchanged.
    const int dim = p.parameter().partition_dim;
    const int64_t rows = gather.all.size(1), cols = gather.all.size(2);
    const at::Tensor whole =
        dim == 0 ? gather.all.view({-1, cols}) : gather.all.permute({1, 0, 2}).reshape({rows, -1});
    const int64_t length = dim == 0 ? rows : cols;
    updates_[&p.parameter()] = Orthogonalise(p, whole)
                                   .narrow(dim, SplitOver(p)->rank() * length, length)
                                   .clone(at::MemoryFormat::Contiguous);
  }
  return absl::OkStatus();
}

void Muon::Apply(const MainParam& param, const at::Tensor& update, const ParamGroup& group,
                 const kernels::GradFactors& factors) const {
  const kernels::MuonScalars scalars{.lr = group.lr,
                                     .weight_decay = group.weight_decay,
                                     .momentum = options_.momentum,
                                     .nesterov = options_.nesterov};
  if (!param.main.is_cpu()) {
    at::Tensor p = param.main, m = param.states[0];
    m.mul_(scalars.momentum).add_(GradOnDevice(param, factors), 1 - scalars.momentum);
    p.mul_(1 - scalars.lr * scalars.weight_decay).sub_(update, scalars.lr);
    if (param.is_copy) param.model().copy_(p);
    return;
  }
  ForEachPieceOf(param, [&](const MainParam& p, int64_t begin, int64_t count) {
    if (p.main.scalar_type() == at::kDouble) {
      ApplyPiece<double>(p, begin, count, update, scalars, factors);
    } else {
      ApplyPiece<float>(p, begin, count, update, scalars, factors);
    }
  });
}

void Muon::Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                  const kernels::GradFactors& factors) {
  at::NoGradGuard no_grad;
  for (const MainParam& p : params) {
    if (p.group != index) continue;
    if (SplitOver(p) == nullptr) {
      Apply(p, Orthogonalise(p, Direction(p, factors)), group, factors);
      continue;
    }
    const auto prepared = updates_.find(&p.parameter());
    MUSTER_CHECK_MSG(prepared != updates_.end(), "a split matrix's update is made by Prepare");
    Apply(p, prepared->second, group, factors);
    updates_.erase(prepared);
  }
}

}  // namespace muster
