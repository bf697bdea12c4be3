// The GPT of Megatron-core's GPTModel as one pipeline stage's chunk: embedding (first stage), the
// chunk's layers, final norm and output (last stage).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "worker/model/embedding.h"
#include "worker/model/model_chunk.h"
#include "worker/model/transformer_block.h"

namespace muster {

class GptModel final : public ModelChunk {
 public:
  // UNIMPLEMENTED for options that the engine has not yet; INVALID_ARGUMENT for names unknown.
  static absl::StatusOr<std::unique_ptr<GptModel>> Create(const ModelBuildContext& context);

  struct Placement {
    bool pre_process = true, post_process = true;
    int64_t layer_offset = 0, num_layers = 0;
    // The tied output weight of a last stage that has no embedding of its own: a copy, kept equal
    // over the embedding group.
    bool separate_tied_output = false;
    // Rows in (S, B) order: what other stages are sent, and what sequence parallelism needs.
    bool seq_major = false;
  };
  // Where the chunk's rank is in the groups of the layers.
  struct Groups {
    TensorParallel tp;
    ContextParallel cp;
    ExpertParallel ep;
    ExpertState* experts = nullptr;  // null: no MoE layers
  };
  GptModel(const TransformerConfig& config, const Placement& placement, const Groups& groups,
           RngTracker& rng, at::Device device, at::ScalarType dtype);

  const std::vector<ParameterPtr>& parameters() const override { return parameters_; }
  void SetTraining(bool training) override { training_ = training; }
  at::Tensor Forward(const Batch& batch, const at::Tensor& input) override;
  bool awaits_parameters() const override { return true; }
  void SetFullRecompute(bool full) override { layers_->SetFullRecompute(full); }
  bool AddUnitHooks(UnitHooks* hooks) override {
    layers_->AddUnitHooks(hooks);
    return true;
  }
  void RemoveUnitHooks(UnitHooks* hooks) override { layers_->RemoveUnitHooks(hooks); }

 private:
  at::Tensor Output(const at::Tensor& hidden, const Batch& batch, const TokenLayout& layout) const;

  const Placement placement_;
  const TensorParallel tp_;
  bool training_ = true;
  std::vector<ParameterPtr> parameters_;
  std::optional<LanguageModelEmbedding> embedding_;
  std::optional<TransformerBlock> layers_;
  std::optional<Norm> final_layernorm_;
  ParameterPtr output_weight_;  // (V, H); the word embedding itself where tied and present
};

}  // namespace muster
