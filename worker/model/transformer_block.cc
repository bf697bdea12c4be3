#include "worker/model/transformer_block.h"

#include <algorithm>
#include <utility>

#include "worker/model/recompute.h"

namespace muster {

TransformerBlock::TransformerBlock(LayerBuild& build, int64_t layer_offset, int64_t num_layers,
                                   std::shared_ptr<const RotaryTable> rotary)
    : recompute_(build.config.recompute),
      recompute_num_layers_(build.config.recompute_num_layers),
      rng_regions_(build.rng.Generators()) {
  auto layers = std::make_shared<Layers>();
  layers->reserve(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) {
    const size_t first_parameter = build.parameters.size();
    layers->emplace_back(build, layer_offset + i, rotary);
    for (size_t p = first_parameter; p < build.parameters.size(); ++p)
      build.parameters[p]->unit = static_cast<int>(i);
  }
  layers_ = std::move(layers);
}

int64_t TransformerBlock::CheckpointAt(int64_t first) const {
  switch (recompute_) {
    case RecomputeMode::kNone:
    case RecomputeMode::kSelective:  // inside the attention
      return full_recompute_ ? 1 : 0;
    case RecomputeMode::kUniform:
      return std::min(recompute_num_layers_, static_cast<int64_t>(layers_->size()) - first);
    case RecomputeMode::kBlock:
      return full_recompute_ || first < recompute_num_layers_ ? 1 : 0;
  }
  return 0;
}

void TransformerBlock::AddUnitHooks(UnitHooks* hooks) {
  auto list = std::make_shared<std::vector<UnitHooks*>>();
  if (hooks != nullptr) {
    *list = *hooks_;
    list->push_back(hooks);
  }
  hooks_ = std::move(list);
}

void TransformerBlock::RemoveUnitHooks(UnitHooks* hooks) {
  auto list = std::make_shared<std::vector<UnitHooks*>>(*hooks_);
  list->erase(std::remove(list->begin(), list->end(), hooks), list->end());
  hooks_ = std::move(list);
}

struct TransformerBlock::Pass {
  std::shared_ptr<const Layers> layers;
  TokenLayout layout;
  at::Tensor mask;
  bool training = false;
  UnitHookList hooks;
  bool closes_units = false;

  PendingAdd Layer(int64_t unit, const PendingAdd& x) const {
    const int number = static_cast<int>(unit);
    CallBeforeForward(hooks, number);
    PendingAdd y = (*layers)[unit].Forward(x, layout, mask, training);
    if (closes_units) y = {.residual = FinishAdd(y)};
    CallAfterForward(hooks, number);
    return y;
  }
  // Layers [first, first + count), with borders between them.
  PendingAdd Row(int64_t first, int64_t count, PendingAdd x) const {
    for (int64_t unit = first; unit < first + count; ++unit) {
      if (unit > first)
        x = MarkBorder(hooks, x, static_cast<int>(unit) - 1, static_cast<int>(unit));
      x = Layer(unit, x);
    }
    return x;
  }
};

PendingAdd TransformerBlock::Forward(const at::Tensor& hidden, const TokenLayout& layout,
                                     const at::Tensor& mask, bool training) const {
  const Pass pass{.layers = layers_,
                  .layout = layout,
                  .mask = mask,
                  .training = training,
                  .hooks = hooks_,
                  .closes_units = AnyClosesUnits(hooks_)};
  PendingAdd x{.residual = hidden};
  const int num_layers = static_cast<int>(layers_->size());
  for (int first = 0; first < num_layers;) {
    x = MarkBorder(hooks_, x, first - 1, first);
    const int64_t count = training ? CheckpointAt(first) : 0;
    if (count == 0) {
      x = pass.Layer(first++, x);
      continue;
    }
    const Segment segment = [pass, first, count](const TensorList& in) {
      return TensorList{FinishAdd(pass.Row(first, count, {.residual = in[0]}))};
    };
    // A checkpoint follows a finished one or begins the chunk: x has no open sum.
    x = {.residual = Recompute(rng_regions_, {x.residual}, segment)[0]};
    first += static_cast<int>(count);
  }
  return num_layers == 0 ? x : MarkBorder(hooks_, x, num_layers - 1, -1);
}

}  // namespace muster
