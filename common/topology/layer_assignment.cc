#include "common/topology/layer_assignment.h"

#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/topology/pipeline_layout.h"

namespace muster {
namespace {

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// What stands before chunk (rank, vp), and how much it holds, the places of embedding and loss
// included (reference 2.1).
struct Span {
  int64_t offset = 0, count = 0;
};

class EvenSplit {
 public:
  explicit EvenSplit(const LayerSplit& split)
      : split_(split),
        total_(split.num_layers + split.account_for_embedding + split.account_for_loss) {}

  absl::Status Check() const {
    if (total_ % split_.pp != 0) {
      return Invalid(
          absl::StrCat("model.num_layers=", split_.num_layers,
                       total_ == split_.num_layers
                           ? ""
                           : absl::StrCat(" plus the places of embedding and loss (", total_, ")"),
                       " must be a multiple of parallel.pipeline_model_parallel_size=", split_.pp));
    }
    return absl::OkStatus();
  }
  int64_t PerRank(int rank) const { return total_ / split_.pp; }
  Span At(int rank, int vp) const {
    const int v = split_.virtual_pp;
    const int64_t chunk = PerRank(rank) / v;
    const bool has_embedding = rank == 0 && vp == 0;
    const bool has_loss = rank == split_.pp - 1 && vp == v - 1;
    Span span{.offset = vp * (total_ / v) + rank * chunk, .count = chunk};
    if (split_.account_for_embedding) {
      has_embedding ? --span.count : --span.offset;
    }
    if (split_.account_for_loss && has_loss) --span.count;
    return span;
  }

 private:
  const LayerSplit& split_;
  const int64_t total_;
};

class UnevenSplit {
 public:
  explicit UnevenSplit(const LayerSplit& split)
      : split_(split),
        first_(split.first_stage_layers.value_or(0)),
        last_(split.last_stage_layers.value_or(0)),
        mid_(split.num_layers - first_ - last_),
        num_mid_stages_(split.pp - split.first_stage_layers.has_value() -
                        split.last_stage_layers.has_value()) {}

  absl::Status Check() const {
    if (split_.account_for_embedding || split_.account_for_loss) {
      return Invalid(
          "parallel.decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers do not "
          "go with account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split; "
          "set one or the other");
    }
    if (first_ < 0 || last_ < 0 || mid_ < 0 || num_mid_stages_ < 0) {
      return Invalid(absl::StrCat("parallel.decoder_first_pipeline_num_layers=", first_,
                                  " and decoder_last_pipeline_num_layers=", last_,
                                  " do not fit model.num_layers=", split_.num_layers, " on ",
                                  split_.pp, " pipeline stages"));
    }
    // Without middle stages Megatron does not look; layers would be lost.
    if (num_mid_stages_ == 0 ? mid_ != 0 : mid_ % num_mid_stages_ != 0) {
      return Invalid(
          absl::StrCat("the ", mid_, " layers between the first ", first_, " and the last ", last_,
                       " of model.num_layers=", split_.num_layers, " must divide evenly over ",
                       num_mid_stages_, " middle pipeline stages"));
    }
    return absl::OkStatus();
  }
  int64_t PerRank(int rank) const {
    if (rank == 0 && split_.first_stage_layers) return first_;
    if (rank == split_.pp - 1 && split_.last_stage_layers) return last_;
    return mid_ / num_mid_stages_;
  }
  Span At(int rank, int vp) const {
    const int v = split_.virtual_pp;
    Span span{.offset = vp * (split_.num_layers / v), .count = PerRank(rank) / v};
    for (int before = 0; before < rank; ++before) span.offset += PerRank(before) / v;
    return span;
  }

 private:
  const LayerSplit& split_;
  const int64_t first_, last_, mid_;
  const int num_mid_stages_;
};

template <class Split>
absl::StatusOr<LayerTable> Assign(const LayerSplit& spec) {
  const Split split(spec);
  RETURN_IF_ERROR(split.Check());
  LayerTable table(spec.pp);
  for (int rank = 0; rank < spec.pp; ++rank) {
    if (split.PerRank(rank) % spec.virtual_pp != 0) {
      return Invalid(
          absl::StrCat("the ", split.PerRank(rank), " layers of pipeline rank ", rank,
                       " must be a multiple of parallel.virtual_pipeline_model_parallel_size=",
                       spec.virtual_pp));
    }
    for (int vp = 0; vp < spec.virtual_pp; ++vp) {
      const Span span = split.At(rank, vp);
      MUSTER_CHECK(span.count >= 0);  // total >= places, and a chunk holds at least one
      ChunkLayers& chunk = table[rank].emplace_back();
      chunk.embedding = rank == 0 && vp == 0;
      chunk.loss = rank == spec.pp - 1 && vp == spec.virtual_pp - 1;
      chunk.layers.resize(span.count);
      std::iota(chunk.layers.begin(), chunk.layers.end(), span.offset);
    }
  }
  return table;
}

}  // namespace

absl::StatusOr<LayerTable> AssignLayers(const LayerSplit& split) {
  if (split.num_layers < 1 || split.pp < 1 || split.virtual_pp < 1) {
    return Invalid(absl::StrCat(
        "model.num_layers=", split.num_layers, ", pipeline_model_parallel_size=", split.pp,
        " and virtual_pipeline_model_parallel_size=", split.virtual_pp, " must be at least 1"));
  }
  if (split.layout.has_value()) {
    absl::StatusOr<LayerTable> table = AssignByLayout(
        *split.layout,
        {.num_layers = split.num_layers, .mtp_num_layers = split.mtp_num_layers, .pp = split.pp});
    if (table.ok()) return table;
    return Invalid(absl::StrCat("parallel.pipeline_model_parallel_layout=\"", *split.layout,
                                "\": ", table.status().message()));
  }
  if (split.first_stage_layers.has_value() || split.last_stage_layers.has_value()) {
    return Assign<UnevenSplit>(split);
  }
  return Assign<EvenSplit>(split);
}

absl::StatusOr<int> VirtualStagesFromLayersPerStage(const LayerSplit& split,
                                                    int64_t layers_per_stage) {
  if (split.first_stage_layers.has_value() || split.last_stage_layers.has_value()) {
    return Invalid(
        "parallel.num_layers_per_virtual_pipeline_stage does not go with "
        "decoder_first_pipeline_num_layers or decoder_last_pipeline_num_layers; set "
        "virtual_pipeline_model_parallel_size instead");
  }
  const int64_t total = split.num_layers + split.account_for_embedding + split.account_for_loss;
  if (layers_per_stage < 1 || total % split.pp != 0 || total / split.pp % layers_per_stage != 0) {
    return Invalid(absl::StrCat("parallel.num_layers_per_virtual_pipeline_stage=", layers_per_stage,
                                " must divide the ", total,
                                " layers (embedding and loss included where they count) of ",
                                split.pp, " pipeline stages evenly"));
  }
  return static_cast<int>(total / split.pp / layers_per_stage);
}

absl::StatusOr<int64_t> PadVocabSize(int64_t vocab_size, int64_t divisible_by, int64_t tp) {
  if (vocab_size < 1 || divisible_by < 1 || tp < 1) {
    return Invalid(absl::StrCat("vocab_size=", vocab_size,
                                ", make_vocab_size_divisible_by=", divisible_by,
                                " and tensor_model_parallel_size=", tp, " must be at least 1"));
  }
  if (divisible_by > std::numeric_limits<int32_t>::max() ||
      tp > std::numeric_limits<int32_t>::max() ||
      vocab_size > std::numeric_limits<int64_t>::max() - divisible_by * tp) {
    return Invalid(absl::StrCat("vocab_size=", vocab_size, " padded to a multiple of ",
                                divisible_by, " x ", tp, " is too large"));
  }
  const int64_t multiple = divisible_by * tp;
  return (vocab_size + multiple - 1) / multiple * multiple;
}

}  // namespace muster
