// What the layers need to know of a job: plain values taken from the spec, with Megatron's names.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "worker/moe/moe_config.h"

namespace muster {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kNone };
enum class Normalization { kLayerNorm, kRmsNorm };

// How attention sees the tokens of other context parallel ranks (reference 14.3).
enum class CpCommType { kP2p, kAllGather, kA2a, kA2aP2p };

// What is run again in the backward pass instead of being kept (transformer_block.h, attention.cc).
enum class RecomputeMode { kNone, kSelective, kUniform, kBlock };

struct TransformerConfig {
  int64_t num_layers = 0;  // of the whole model
  int64_t hidden_size = 0, ffn_hidden_size = 0;
  int64_t num_attention_heads = 0, num_query_groups = 0;
  int64_t kv_channels = 0;  // a head's width
  int64_t max_position_embeddings = 0, padded_vocab_size = 0;
  PositionEmbedding position_embedding = PositionEmbedding::kLearnedAbsolute;
  double rotary_base = 10000, rotary_percent = 1.0;
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool swiglu = false, add_bias_linear = true, add_qkv_bias = false, qk_layernorm = false;
  bool untie_embeddings_and_output_weights = false;
  double attention_dropout = 0.1, hidden_dropout = 0.1;
  double init_method_std = 0.02;
  RecomputeMode recompute = RecomputeMode::kNone;
  int64_t recompute_num_layers = 1;      // uniform: of a group; block: of a chunk
  std::vector<CpCommType> cp_comm_type;  // by layer of the whole model
  MoeConfig moe;

  // UNIMPLEMENTED for what the engine has not yet, INVALID_ARGUMENT for unknown names.
  static absl::StatusOr<TransformerConfig> FromSpec(const JobSpec& spec, const ResolvedSpec& sizes);
};

// How rows of an activation (N, ...) stand for tokens: row = b * seq + s, or s * batch + b
// (Megatron's (S, B, H), used wherever hidden states leave the rank).
struct TokenLayout {
  int64_t batch = 0, seq = 0;
  bool seq_major = false;
  int64_t rows() const { return batch * seq; }
};

}  // namespace muster
