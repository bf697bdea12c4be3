#include "worker/optim/main_params.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

at::ScalarType MainType(const OwnedShard& shard) {
  return shard.data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Hands out views of one zeroed allocation a dtype, in the order of the requests.
class FlatAllocator {
 public:
  void Plan(const OwnedShard& shard) { planned_[MainType(shard)] += shard.data.numel(); }
  at::Tensor Take(const OwnedShard& shard) {
    const at::ScalarType dtype = MainType(shard);
    Arena& arena = arenas_[dtype];
    if (!arena.data.defined()) {
      arena.data =
          at::zeros({planned_[dtype]}, at::TensorOptions(shard.data.device()).dtype(dtype));
    }
    at::Tensor view = arena.data.narrow(0, arena.used, shard.data.numel()).view(shard.data.sizes());
    arena.used += shard.data.numel();
    return view;
  }

 private:
  struct Arena {
    at::Tensor data;
    int64_t used = 0;
  };
  std::map<at::ScalarType, int64_t> planned_;
  std::map<at::ScalarType, Arena> arenas_;
};

}  // namespace

std::vector<MainParam> MakeMainParams(const std::vector<std::vector<OwnedShard>>& groups,
                                      const std::vector<int>& num_states) {
  at::NoGradGuard no_grad;
  std::vector<MainParam> params;
  FlatAllocator copies;
  std::vector<FlatAllocator> states(
      num_states.empty() ? 0 : *std::max_element(num_states.begin(), num_states.end()));
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const OwnedShard& shard : groups[g]) {
      MUSTER_CHECK_MSG(shard.data.is_contiguous() && shard.data.is_floating_point(),
                       absl::StrCat(shard.parameter->name, " must be contiguous and floating"));
      const bool is_copy = MainType(shard) != shard.data.scalar_type();
      params.push_back({.shard = shard, .group = static_cast<int>(g), .is_copy = is_copy});
      if (is_copy) copies.Plan(shard);
      for (int i = 0; i < num_states[g]; ++i) states[i].Plan(shard);
    }
  }
  for (MainParam& p : params) {
    p.main = p.is_copy ? copies.Take(p.shard) : p.shard.data.detach();
    for (int i = 0; i < num_states[p.group]; ++i) p.states.push_back(states[i].Take(p.shard));
  }
  CopyModelToMain(params);
  return params;
}

void CopyModelToMain(const std::vector<MainParam>& params) {
  at::NoGradGuard no_grad;
  for (const MainParam& p : params)
    if (p.is_copy) p.main.copy_(p.model());
}

void CopyMainToModel(const std::vector<MainParam>& params) {
  at::NoGradGuard no_grad;
  for (const MainParam& p : params)
    if (p.is_copy) p.model().copy_(p.main);
}

namespace {

void RunPieces(const std::vector<const MainParam*>& params, const PieceFn& fn) {
  struct Piece {
    const MainParam* param;
    int64_t begin;
  };
  std::vector<Piece> pieces;
  for (const MainParam* p : params)
    for (int64_t begin = 0; begin < p->main.numel(); begin += kUpdatePiece)
      pieces.push_back({p, begin});
  constexpr int64_t kGrain = 8;  // pieces; fewer than that are not worth a second thread
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), kGrain,
                   [&](int64_t first, int64_t last) {
                     for (int64_t i = first; i < last; ++i) {
                       const auto& [param, begin] = pieces[i];
                       fn(*param, begin, std::min(kUpdatePiece, param->main.numel() - begin));
                     }
                   });
}

}  // namespace

void ForEachPiece(const std::vector<MainParam>& params, int group, const PieceFn& fn) {
  std::vector<const MainParam*> chosen;
  for (const MainParam& p : params)
    if (p.group == group) chosen.push_back(&p);
  RunPieces(chosen, fn);
}

void ForEachPieceOf(const MainParam& param, const PieceFn& fn) { RunPieces({&param}, fn); }

}  // namespace muster
