// Word embedding plus learned positions, with dropout: tokens -> hidden rows. The rows of the word
// table are split over tp (reference 14.1); positions are replicated.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/data/batch.h"
#include "worker/model/layer_build.h"
#include "worker/parallel/parameter.h"

namespace muster {

class LanguageModelEmbedding {
 public:
  // embedding.word_embeddings.weight (padded vocab, H), embedding.position_embeddings.weight.
  explicit LanguageModelEmbedding(LayerBuild& build);

  // tokens, position_ids (B, S) -> (N, H) in `layout`'s order; with sequence parallelism this
  // rank's N / tp rows of it.
  at::Tensor Forward(const Batch& batch, const TokenLayout& layout, bool training) const;
  const ParameterPtr& word_embeddings() const { return word_embeddings_; }

 private:
  TensorParallel tp_;
  double dropout_;
  at::Generator dropout_generator_;
  ParameterPtr word_embeddings_, position_embeddings_;  // positions: null with rope or none
};

// (B, S) -> the N ids in rows' order.
at::Tensor IdsInRowOrder(const at::Tensor& ids, const TokenLayout& layout);

}  // namespace muster
