#include "worker/model/transformer_block.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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
    layers->emplace_back(build, absl::StrCat("decoder.layers.", layer_offset + i), rotary);
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

PendingAdd TransformerBlock::Forward(const at::Tensor& hidden, const TokenLayout& layout,
                                     const at::Tensor& mask, bool training) const {
  PendingAdd x{.residual = hidden};
  const int64_t num_layers = static_cast<int64_t>(layers_->size());
  for (int64_t first = 0; first < num_layers;) {
    const int64_t count = training ? CheckpointAt(first) : 0;
    if (count == 0) {
      x = (*layers_)[first++].Forward(x, layout, mask, training);
      continue;
    }
    const Segment segment = [layers = layers_, first, count, layout, mask,
                             training](const TensorList& in) {
      PendingAdd y{.residual = in[0]};
      for (int64_t i = first; i < first + count; ++i) {
        y = (*layers)[i].Forward(y, layout, mask, training);
      }
      return TensorList{FinishAdd(y)};
    };
    // A checkpoint follows a finished one or begins the chunk: x has no open sum.
    x = {.residual = Recompute(rng_regions_, {x.residual}, segment)[0]};
    first += count;
  }
  return x;
}

}  // namespace muster
