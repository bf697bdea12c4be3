// The layers of one chunk in a row, with full activation recomputation where it is asked for
// (Megatron's TransformerBlock, _checkpointed_forward):
//   uniform  groups of recompute_num_layers consecutive layers are a checkpoint each
//   block    the first recompute_num_layers layers of the chunk are a checkpoint each, the others
//            keep their activations
// After SetFullRecompute(true) every layer is recomputed, whatever the spec says: a checkpoint
// each, or uniform's groups.
// A checkpoint keeps its input alone, (N, H). For that its last layer's open sum is finished at the
// edge, with the arithmetic of the norm that would have finished it: the numbers are those of a run
// without recomputation, to the bit on a CPU.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/model/layer.h"
#include "worker/model/transformer_config.h"
#include "worker/model/unit_border.h"

namespace muster {

class TransformerBlock {
 public:
  // Layers [layer_offset, layer_offset + num_layers) of the model: the units of the chunk, numbered
  // from 0 (Parameter::unit). `rotary` may be null.
  TransformerBlock(LayerBuild& build, int64_t layer_offset, int64_t num_layers,
                   std::shared_ptr<const RotaryTable> rotary);

  void SetFullRecompute(bool full) { full_recompute_ = full; }
  // ModelChunk::AddUnitHooks. Graphs made before keep the hooks that there were.
  void AddUnitHooks(UnitHooks* hooks);
  void RemoveUnitHooks(UnitHooks* hooks);

  // hidden (N, H), finished -> the last layer's result. Graphs made here outlive the block.
  PendingAdd Forward(const at::Tensor& hidden, const TokenLayout& layout, const at::Tensor& mask,
                     bool training) const;

 private:
  using Layers = std::vector<TransformerLayer>;
  struct Pass;  // what the layers of one forward pass share
  // How many layers from `first` on are one checkpoint; 0: the layer keeps its activations.
  int64_t CheckpointAt(int64_t first) const;

  const RecomputeMode recompute_;
  const int64_t recompute_num_layers_;
  const std::vector<at::Generator> rng_regions_;
  bool full_recompute_ = false;
  UnitHookList hooks_ = std::make_shared<std::vector<UnitHooks*>>();
  std::shared_ptr<const Layers> layers_;  // shared with the graphs, which run them again
};

}  // namespace muster
