#include "common/schedule/model_size.h"

#include <algorithm>

#include "common/spec/per_layer.h"

namespace muster {

ParameterCount operator+(const ParameterCount& a, const ParameterCount& b) {
  return {a.dense_matrices + b.dense_matrices, a.dense_other + b.dense_other,
          a.expert_matrices + b.expert_matrices, a.expert_other + b.expert_other};
}

namespace {

ParameterCount Times(const ParameterCount& a, int64_t n) {
  return {a.dense_matrices * n, a.dense_other * n, a.expert_matrices * n, a.expert_other * n};
}
ParameterCount Matrix(int64_t rows, int64_t columns) { return {.dense_matrices = rows * columns}; }
ParameterCount Other(int64_t size) { return {.dense_other = size}; }

// How much a model is cut: 1, 1, 1 for the whole of it.
struct Cut {
  int64_t tp = 1, ep = 1, etp = 1;
};

class Counter {
 public:
  Counter(const JobSpec& spec, const ResolvedSpec& resolved, Cut cut)
      : m_(spec.model),
        r_(resolved),
        cut_(cut),
        h_(spec.model.hidden_size),
        has_experts_(ExpertLayers(spec.model)) {}

  ParameterCount Layer(int64_t layer) const {
    const ParameterCount mlp = has_experts_[layer] ? Moe() : Mlp(r_.ffn_hidden_size, cut_.tp);
    return Norm(h_) + Attention() + Norm(h_) + mlp;
  }
  ParameterCount Norm(int64_t size) const {
    return Other(m_.normalization == "RMSNorm" ? size : 2 * size);  // weight (and bias)
  }
  // Not Muon's: it leaves embeddings and the output layer alone.
  ParameterCount WordEmbedding() const { return Other(r_.padded_vocab_size / cut_.tp * h_); }
  ParameterCount PositionEmbedding() const {
    if (m_.position_embedding_type != "learned_absolute") return {};
    return Other(r_.max_position_embeddings * h_);
  }

 private:
  ParameterCount Attention() const {
    const int64_t query = r_.kv_channels * m_.num_attention_heads / cut_.tp;
    // With fewer groups than tensor-parallel ranks each rank keeps one whole group.
    const int64_t groups = std::max<int64_t>(1, r_.num_query_groups / cut_.tp);
    const int64_t qkv = query + 2 * r_.kv_channels * groups;
    ParameterCount count = Matrix(qkv, h_) + Matrix(h_, query);
    if (m_.add_bias_linear || m_.add_qkv_bias) count = count + Other(qkv);
    if (m_.add_bias_linear) count = count + Other(h_);  // after the sum over tp: whole
    if (m_.qk_layernorm) count = count + Times(Norm(r_.kv_channels), 2);
    return count;
  }
  ParameterCount Mlp(int64_t ffn_whole, int64_t tp) const {
    const int64_t ffn = ffn_whole / tp;
    const int64_t fc1 = m_.swiglu ? 2 * ffn : ffn;
    ParameterCount count = Matrix(fc1, h_) + Matrix(h_, ffn);
    if (m_.add_bias_linear) count = count + Other(fc1) + Other(h_);
    return count;
  }
  ParameterCount Moe() const {
    const int64_t ffn = m_.moe_ffn_hidden_size.value_or(r_.ffn_hidden_size);
    const ParameterCount expert = Mlp(ffn, cut_.etp);
    const int64_t num_local = *m_.num_experts / cut_.ep;
    ParameterCount count = Matrix(*m_.num_experts, h_);  // router, on every rank
    if (m_.add_bias_linear) count = count + Other(*m_.num_experts);
    count = count + ParameterCount{.expert_matrices = expert.dense_matrices * num_local,
                                   .expert_other = expert.dense_other * num_local};
    if (m_.moe_shared_expert_intermediate_size.value_or(0) > 0) {
      count = count + Mlp(*m_.moe_shared_expert_intermediate_size, cut_.tp);
      if (m_.moe_shared_expert_gate) count = count + Matrix(1, h_);
    }
    return count;
  }

  const ModelSpec& m_;
  const ResolvedSpec& r_;
  const Cut cut_;
  const int64_t h_;
  const std::vector<bool> has_experts_;
};

}  // namespace

ParameterCount CountParameters(const JobSpec& spec, const ResolvedSpec& resolved) {
  const Counter counter(spec, resolved, {});
  ParameterCount count =
      counter.WordEmbedding() + counter.PositionEmbedding() + counter.Norm(spec.model.hidden_size);
  for (int64_t layer = 0; layer < spec.model.num_layers; ++layer) {
    count = count + counter.Layer(layer);
  }
  if (spec.model.untie_embeddings_and_output_weights) count = count + counter.WordEmbedding();
  return count;
}

ChunkParameters CountChunkParameters(const JobSpec& spec, const ResolvedSpec& resolved,
                                     const ChunkLayers& chunk) {
  const ParallelSpec& p = spec.parallel;
  const int64_t tp = p.tensor_model_parallel_size;
  const Counter counter(
      spec, resolved,
      {tp, p.expert_model_parallel_size, p.expert_tensor_parallel_size.value_or(tp)});
  ChunkParameters parts;
  for (const int64_t layer : chunk.layers) parts.layers.push_back(counter.Layer(layer));
  if (chunk.embedding) parts.embedding = counter.WordEmbedding() + counter.PositionEmbedding();
  if (!chunk.loss) return parts;
  parts.final_norm = counter.Norm(spec.model.hidden_size);
  const bool shares_first_stage =
      !spec.model.untie_embeddings_and_output_weights && p.pipeline_model_parallel_size == 1;
  if (!shares_first_stage) parts.output = counter.WordEmbedding();
  return parts;
}

ParameterCount CountRankParameters(const JobSpec& spec, const ResolvedSpec& resolved,
                                   const std::vector<ChunkLayers>& chunks) {
  ParameterCount count;
  for (const ChunkLayers& chunk : chunks) {
    const ChunkParameters parts = CountChunkParameters(spec, resolved, chunk);
    count = count + parts.embedding + parts.final_norm + parts.output;
    for (const ParameterCount& layer : parts.layers) count = count + layer;
  }
  return count;
}

}  // namespace muster
