#include "common/topology/layer_assignment.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr size_t kMaxLayoutLength = 100000;  // characters, expanded

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

// ---- layout strings (reference 2.2)

absl::Status InvalidLayout(const std::string& layout, const std::string& rule) {
  return Invalid(absl::StrCat("parallel.pipeline_model_parallel_layout=\"", layout, "\": ", rule));
}

// The number after the '*' at text[*at], if one is there; moves *at past it. 1 otherwise.
absl::StatusOr<size_t> RepeatCount(const std::string& layout, const std::string& text, size_t* at) {
  if (*at >= text.size() || text[*at] != '*') return 1;
  size_t end = *at + 1;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
  uint32_t count = 0;
  if (!absl::SimpleAtoi(absl::string_view(text).substr(*at + 1, end - *at - 1), &count) ||
      count > kMaxLayoutLength) {
    return InvalidLayout(layout, "a whole number (not a huge one) must follow '*'");
  }
  *at = end;
  return count;
}

absl::Status AppendRepeated(const std::string& layout, const std::string& part, size_t count,
                            std::string* out) {
  if (out->size() + part.size() * count > kMaxLayoutLength) {
    return InvalidLayout(layout, "is too long once repeats are written out");
  }
  for (size_t i = 0; i < count; ++i) out->append(part);
  return absl::OkStatus();
}

// "(tt|)*2t*3" -> "tt|tt|ttt": groups first, then single characters.
absl::StatusOr<std::string> ExpandLayout(const std::string& layout) {
  std::string plain, groups_done, expanded;
  for (char c : layout) {
    if (c != ',') plain.push_back(c);
  }
  for (size_t i = 0; i < plain.size();) {
    if (plain[i] != '(') {
      groups_done.push_back(plain[i++]);
      continue;
    }
    const size_t close = plain.find_first_of("()", i + 1);
    if (close == std::string::npos || plain[close] == '(') {
      return InvalidLayout(layout, "groups must be closed and do not nest");
    }
    size_t after = close + 1;
    if (after >= plain.size() || plain[after] != '*') {
      return InvalidLayout(layout, "a group needs a repeat: (...)*2");
    }
    ASSIGN_OR_RETURN(const size_t count, RepeatCount(layout, plain, &after));
    RETURN_IF_ERROR(
        AppendRepeated(layout, plain.substr(i + 1, close - i - 1), count, &groups_done));
    i = after;
  }
  for (size_t i = 0; i < groups_done.size();) {
    const std::string one(1, groups_done[i++]);
    ASSIGN_OR_RETURN(const size_t count, RepeatCount(layout, groups_done, &i));
    RETURN_IF_ERROR(AppendRepeated(layout, one, count, &expanded));
  }
  return expanded;
}

absl::StatusOr<LayerTable> AssignByLayout(const LayerSplit& split) {
  const std::string& layout = *split.layout;
  ASSIGN_OR_RETURN(const std::string text, ExpandLayout(layout));
  const int64_t num_stages = 1 + std::count(text.begin(), text.end(), '|');
  if (num_stages % split.pp != 0) {
    return InvalidLayout(layout, absl::StrCat("its ", num_stages,
                                              " stages must be a multiple of "
                                              "pipeline_model_parallel_size=",
                                              split.pp));
  }
  const int v = static_cast<int>(num_stages / split.pp);
  LayerTable table(split.pp, std::vector<ChunkLayers>(v));
  std::string order;  // the symbols without '|'
  int64_t stage = 0, num_layers = 0, num_mtp = 0, num_mtp_stages = 0;
  for (char symbol : text) {
    ChunkLayers& chunk = table[stage % split.pp][stage / split.pp];
    switch (symbol) {
      case '|':
        ++stage;
        continue;
      case 'E':
        chunk.embedding = true;
        break;
      case 't':
        chunk.layers.push_back(num_layers++);
        break;
      case 'm':
        if (chunk.num_mtp_layers++ == 0) ++num_mtp_stages;
        if (stage / split.pp != v - 1) {
          return InvalidLayout(layout, "m must be in the last virtual stage of its rank");
        }
        ++num_mtp;
        break;
      case 'L':
        chunk.loss = true;
        break;
      default:
        return InvalidLayout(
            layout, absl::StrCat("'", std::string(1, symbol), "' is not one of E, t, m, L, |"));
    }
    order.push_back(symbol);
  }
  if (std::count(order.begin(), order.end(), 'E') != 1 || order.front() != 'E') {
    return InvalidLayout(layout, "E must be there once, and first");
  }
  if (std::count(order.begin(), order.end(), 'L') != 1 || order.back() != 'L') {
    return InvalidLayout(layout, "L must be there once, and last");
  }
  if (num_layers != split.num_layers) {
    return InvalidLayout(layout, absl::StrCat("has ", num_layers, " layers t; model.num_layers is ",
                                              split.num_layers));
  }
  if (num_mtp != split.mtp_num_layers) {
    return InvalidLayout(layout, absl::StrCat("has ", num_mtp, " layers m; mtp_num_layers is ",
                                              split.mtp_num_layers));
  }
  if (num_mtp_stages > 1) return InvalidLayout(layout, "all m must be in one stage");
  const size_t first_m = order.find('m');
  if (first_m != std::string::npos && order.rfind('t') != std::string::npos &&
      order.rfind('t') > first_m) {
    return InvalidLayout(layout, "m must come after all t");
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
  if (split.layout.has_value()) return AssignByLayout(split);
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
