#include "common/schedule/activation_memory.h"

#include <algorithm>

#include "common/schedule/activation_layers.h"
#include "common/spec/data_sharding.h"

namespace muster {
namespace {

class ChunkWalk : private LayerWalk {
 public:
  ChunkWalk(const JobSpec& spec, const ResolvedSpec& resolved, Recomputed recomputed)
      : LayerWalk(spec, resolved),
        all_layers_(recomputed == Recomputed::kAllLayers),
        closes_(DataShardingOf(spec.parallel).by_unit) {}

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
        open = !closes_;
        if (closes_) CloseForward();
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
    } else if (LastIsClosed(num_layers)) {
      t.Give(Hidden());
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
    for (int64_t i = 0; i < num_layers; ++i) {
      LayerForward(chunk.layers[first + i], /*open=*/i > 0 && !closes_);
      if (closes_ && i + 1 < num_layers) CloseForward();
    }
  }

  // A unit of fully sharded data parallelism adds its branch up before the next one begins.
  void CloseForward() {
    tape().Take(DropMask() + Hidden());
    tape().Give(Hidden());
  }
  bool LastIsClosed(int64_t num_layers) const {
    return closes_ && num_layers > 0 && GroupEndingAt(num_layers, num_layers) == 0;
  }
  // Back through the sum of the layer before. Returns the gradients that are held.
  double CloseBackward() {
    tape().Give(Hidden());  // the sum
    tape().Take(DropMask());
    tape().Give(DropMask());
    return Hidden() + DropMask();
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
    if (LastIsClosed(num_layers)) {
      if (!chunk.loss) t.Take(Hidden());  // the message is not held
      gradients = CloseBackward();
    }
    for (int64_t layer = num_layers; layer > 0;) {
      const int64_t group = GroupEndingAt(layer, num_layers);
      if (group == 0) {
        const bool follows_layer = layer > 1 && GroupEndingAt(layer - 1, num_layers) == 0;
        gradients = LayerBackward(chunk.layers[layer - 1], follows_layer && !closes_, gradients);
        if (follows_layer && closes_) gradients = CloseBackward();
        --layer;
        continue;
      }
      RunGroup(chunk, layer - group, group);  // once more, kept
      t.Take(Hidden());
      t.Give(2 * Hidden());
      for (int64_t i = group; i > 0; --i) {
        gradients =
            LayerBackward(chunk.layers[layer - group + i - 1], i > 1 && !closes_, gradients);
        if (closes_ && i > 1) gradients = CloseBackward();
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

  const bool all_layers_, closes_;
};

}  // namespace

ActivationBytes ChunkActivations(const JobSpec& spec, const ResolvedSpec& resolved,
                                 const ChunkLayers& chunk, Recomputed recomputed) {
  return ChunkWalk(spec, resolved, recomputed).Chunk(chunk);
}

}  // namespace muster
