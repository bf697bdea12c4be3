#include "common/schedule/activation_memory.h"

#include <algorithm>

#include "common/schedule/activation_layers.h"

namespace muster {
namespace {

class ChunkWalk : private LayerWalk {
 public:
  ChunkWalk(const JobSpec& spec, const ResolvedSpec& resolved, Recomputed recomputed)
      : LayerWalk(spec, resolved), all_layers_(recomputed == Recomputed::kAllLayers) {}

  ActivationBytes Chunk(const ChunkLayers& chunk) {
    const auto num_layers = static_cast<int64_t>(chunk.layers.size());
    Tape& t = tape();
    t.Take(Hidden());  // embeddings, or what the stage before sent
    if (chunk.embedding) {
      t.Take(n_ * kIdBytes * 2);  // tokens and positions, until their rows' gradients are added
      t.Touch(m_.position_embedding_type == "learned_absolute" ? Whole() : 0);
      t.Take(DropMask());
    }
    bool open = false;  // the last layer's sum is still to be made
    for (int64_t layer = 0; layer < num_layers;) {
      const int64_t group = CheckpointAt(layer, num_layers);
      if (group == 0) {
        LayerForward(chunk.layers[layer], open);
        open = true;
        ++layer;
        continue;
      }
      const double before = t.held();
      RunGroup(chunk, layer, group);
      t.Take(Hidden());  // the group's output
      t.Give(t.held() - before - Hidden());
      open = false;
      layer += group;
    }
    if (chunk.loss) {
      NormForward(open);
      if (open) t.Give(Hidden());
      HeadForward();
    } else if (open) {
      t.Take(Hidden());  // FinishAdd's sum is the message: its memory goes with it
      t.Give(2 * Hidden());
    }
    ActivationBytes bytes;
    bytes.kept = static_cast<int64_t>(t.held());
    bytes.forward_peak = static_cast<int64_t>(t.peak());
    t.ForgetPeak();
    Backward(chunk, num_layers, open);
    bytes.backward_peak = static_cast<int64_t>(t.peak());
    return bytes;
  }

 private:
  void RunGroup(const ChunkLayers& chunk, int64_t first, int64_t num_layers) {
    for (int64_t i = 0; i < num_layers; ++i) LayerForward(chunk.layers[first + i], /*open=*/i > 0);
  }

  void Backward(const ChunkLayers& chunk, int64_t num_layers, bool open) {
    Tape& t = tape();
    double gradients = 0;  // of the residual stream, held
    if (chunk.loss) {
      gradients = HeadBackward(open);
    } else {
      t.Take(Hidden());  // received
      gradients = Hidden();
    }
    for (int64_t layer = num_layers; layer > 0;) {
      const int64_t group = GroupEndingAt(layer, num_layers);
      if (group == 0) {
        const bool first_is_open = layer > 1 && GroupEndingAt(layer - 1, num_layers) == 0;
        gradients = LayerBackward(chunk.layers[layer - 1], first_is_open, gradients);
        --layer;
        continue;
      }
      RunGroup(chunk, layer - group, group);  // once more, kept
      t.Take(Hidden());
      t.Give(2 * Hidden());
      for (int64_t i = group; i > 0; --i) {
        gradients = LayerBackward(chunk.layers[layer - group + i - 1], i > 1, gradients);
      }
      layer -= group;
    }
  }

  // Recomputation, as worker/model/transformer_block.cc does it: layers in the group that begins or
  // ends there, 0 for a layer that keeps its activations.
  int64_t CheckpointAt(int64_t first, int64_t num_layers) const {
    if (t_.recompute_granularity != "full") return all_layers_ ? 1 : 0;
    const int64_t count = t_.recompute_num_layers.value_or(1);
    if (t_.recompute_method == "block") return all_layers_ || first < count ? 1 : 0;
    return std::min(count, num_layers - first);
  }
  int64_t GroupEndingAt(int64_t end, int64_t num_layers) const {
    for (int64_t first = 0; first < end;) {
      const int64_t group = CheckpointAt(first, num_layers);
      if (group > 0 && first + group == end) return group;
      first += std::max<int64_t>(1, group);
    }
    return 0;
  }

  const bool all_layers_;
};

}  // namespace

ActivationBytes ChunkActivations(const JobSpec& spec, const ResolvedSpec& resolved,
                                 const ChunkLayers& chunk, Recomputed recomputed) {
  return ChunkWalk(spec, resolved, recomputed).Chunk(chunk);
}

}  // namespace muster
