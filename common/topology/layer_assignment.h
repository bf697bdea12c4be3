// Which transformer layers each model chunk holds (reference 2): even and uneven splits, virtual
// pipeline stages, and the layout string of --pipeline-model-parallel-layout. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct LayerSplit {
  int64_t num_layers = 0;
  int pp = 1;
  int virtual_pp = 1;  // model chunks a rank; 1: no virtual pipeline. Not used with a layout.
  std::optional<int64_t> first_stage_layers, last_stage_layers;  // uneven split
  bool account_for_embedding = false, account_for_loss = false;  // each takes a layer's place
  std::optional<std::string> layout;
  int64_t mtp_num_layers = 0;  // multi-token prediction layers, only named by a layout
};

// One model chunk: pp rank r's chunk c is virtual stage c of that rank.
struct ChunkLayers {
  bool embedding = false;       // pre_process
  bool loss = false;            // post_process
  std::vector<int64_t> layers;  // global numbers of its decoder layers, in rising order
  int64_t num_mtp_layers = 0;
  bool operator==(const ChunkLayers&) const = default;
};

// [pp rank][chunk]; every rank has the same number of chunks. Each layer is in exactly one chunk.
// INVALID_ARGUMENT names the rule that does not hold.
using LayerTable = std::vector<std::vector<ChunkLayers>>;
absl::StatusOr<LayerTable> AssignLayers(const LayerSplit& split);

// Chunks a rank from --num-layers-per-virtual-pipeline-stage: ((L + [emb] + [loss]) / pp) / n, both
// divisions exact.
absl::StatusOr<int> VirtualStagesFromLayersPerStage(const LayerSplit& split,
                                                    int64_t layers_per_stage);

// Vocabulary rounded up so that each tensor-parallel rank's part is a multiple of `divisible_by`.
absl::StatusOr<int64_t> PadVocabSize(int64_t vocab_size, int64_t divisible_by, int64_t tp);

}  // namespace muster
