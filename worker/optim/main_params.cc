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

at::ScalarType MainType(const Parameter& p) {
  return p.data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Hands out views of one zeroed allocation a dtype, in the order of the requests.
class FlatAllocator {
 public:
  void Plan(at::ScalarType dtype, int64_t numel) { planned_[dtype] += numel; }
  at::Tensor Take(const Parameter& p) {
    const at::ScalarType dtype = MainType(p);
    Arena& arena = arenas_[dtype];
    if (!arena.data.defined())
      arena.data = at::zeros({planned_[dtype]}, at::TensorOptions(p.data.device()).dtype(dtype));
    at::Tensor view = arena.data.narrow(0, arena.used, p.data.numel()).view(p.data.sizes());
    arena.used += p.data.numel();
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

std::vector<MainParam> MakeMainParams(const std::vector<std::vector<ParameterPtr>>& groups,
                                      int num_states) {
  at::NoGradGuard no_grad;
  std::vector<MainParam> params;
  FlatAllocator copies;
  std::vector<FlatAllocator> states(num_states);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const ParameterPtr& p : groups[g]) {
      MUSTER_CHECK_MSG(p->data.is_contiguous() && p->data.is_floating_point(),
                       absl::StrCat(p->name, " must be contiguous and floating"));
      const at::ScalarType dtype = MainType(*p);
      const bool is_copy = dtype != p->data.scalar_type();
      params.push_back({.parameter = p, .group = static_cast<int>(g), .is_copy = is_copy});
      if (is_copy) copies.Plan(dtype, p->data.numel());
      for (FlatAllocator& state : states) state.Plan(dtype, p->data.numel());
    }
  }
  for (MainParam& p : params) {
    p.main = p.is_copy ? copies.Take(*p.parameter) : p.parameter->data.detach();
    for (FlatAllocator& state : states) p.states.push_back(state.Take(*p.parameter));
  }
  CopyModelToMain(params);
  return params;
}

void CopyModelToMain(const std::vector<MainParam>& params) {
  at::NoGradGuard no_grad;
  for (const MainParam& p : params)
    if (p.is_copy) p.main.copy_(p.parameter->data);
}

void CopyMainToModel(const std::vector<MainParam>& params) {
  at::NoGradGuard no_grad;
  for (const MainParam& p : params)
    if (p.is_copy) p.parameter->data.copy_(p.main);
}

void ForEachPiece(const std::vector<MainParam>& params, int group,
                  const std::function<void(const MainParam&, int64_t, int64_t)>& fn) {
  struct Piece {
    const MainParam* param;
    int64_t begin;
  };
  std::vector<Piece> pieces;
  for (const MainParam& p : params) {
    if (p.group != group) continue;
    for (int64_t begin = 0; begin < p.main.numel(); begin += kUpdatePiece)
      pieces.push_back({&p, begin});
  }
  constexpr int64_t kGrain = 8;  // pieces; fewer than that are not worth a second thread
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), kGrain,
                   [&](int64_t first, int64_t last) {
                     for (int64_t i = first; i < last; ++i) {
                       const auto& [param, begin] = pieces[i];
                       fn(*param, begin, std::min(kUpdatePiece, param->main.numel() - begin));
                     }
                   });
}

}  // namespace muster
