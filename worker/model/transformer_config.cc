#include "worker/model/transformer_config.h"

#include "absl/strings/str_cat.h"
#include "common/spec/per_layer.h"
#include "worker/model/moe_from_spec.h"

namespace muster {
namespace {

// In the names of the spec.
CpCommType CpCommTypeOf(const std::string& name) {
  if (name == "all_gather") return CpCommType::kAllGather;
  if (name == "a2a") return CpCommType::kA2a;
  if (name == "a2a+p2p") return CpCommType::kA2aP2p;
  return CpCommType::kP2p;
}

}  // namespace

absl::StatusOr<TransformerConfig> TransformerConfig::FromSpec(const JobSpec& spec,
                                                              const ResolvedSpec& sizes) {
  const ModelSpec& model = spec.model;
  TransformerConfig config;
  if (model.position_embedding_type == "learned_absolute") {
    config.position_embedding = PositionEmbedding::kLearnedAbsolute;
  } else if (model.position_embedding_type == "rope") {
    config.position_embedding = PositionEmbedding::kRope;
  } else if (model.position_embedding_type == "none") {
    config.position_embedding = PositionEmbedding::kNone;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("model.position_embedding_type='",
                                                   model.position_embedding_type,
                                                   "': must be learned_absolute, rope or none"));
  }
  if (model.normalization == "LayerNorm") {
    config.normalization = Normalization::kLayerNorm;
  } else if (model.normalization == "RMSNorm") {
    config.normalization = Normalization::kRmsNorm;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("model.normalization='", model.normalization,
                                                   "': must be LayerNorm or RMSNorm"));
  }
  config.num_layers = model.num_layers;
  config.hidden_size = model.hidden_size;
  config.ffn_hidden_size = sizes.ffn_hidden_size;
  config.num_attention_heads = model.num_attention_heads;
  config.num_query_groups = sizes.num_query_groups;
  config.kv_channels = sizes.kv_channels;
  config.max_position_embeddings = sizes.max_position_embeddings;
  config.padded_vocab_size = sizes.padded_vocab_size;
  config.rotary_base = model.rotary_base;
  config.rotary_percent = model.rotary_percent;
  config.norm_epsilon = model.norm_epsilon;
  config.swiglu = model.swiglu;
  config.add_bias_linear = model.add_bias_linear;
  config.add_qkv_bias = model.add_qkv_bias;
  config.qk_layernorm = model.qk_layernorm;
  config.untie_embeddings_and_output_weights = model.untie_embeddings_and_output_weights;
  config.attention_dropout = model.attention_dropout;
  config.hidden_dropout = model.hidden_dropout;
  config.init_method_std = model.init_method_std;
  if (spec.training.recompute_granularity == "selective") {
    config.recompute = RecomputeMode::kSelective;
  } else if (spec.training.recompute_granularity == "full") {
    config.recompute =
        spec.training.recompute_method == "block" ? RecomputeMode::kBlock : RecomputeMode::kUniform;
    config.recompute_num_layers = spec.training.recompute_num_layers.value_or(1);
  }
  for (const std::string& type : CpCommTypes(spec)) {
    config.cp_comm_type.push_back(CpCommTypeOf(type));
  }
  config.moe = MoeConfigOf(spec, sizes);
  return config;
}

}  // namespace muster
