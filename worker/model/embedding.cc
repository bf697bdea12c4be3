#include "worker/model/embedding.h"

#include <ATen/ops/add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#include "worker/model/autograd_op.h"
#include "worker/model/norm.h"

namespace muster {
namespace {

// The gradient of rows picked from a table: only those rows of main_grad are touched.
at::Tensor DeliverRowsGrad(Parameter& table, const at::Tensor& ids, const at::Tensor& grad) {
  if (table.main_grad.defined()) {
    table.AccumulateGradRows(ids, grad);
    return {};
  }
  return at::zeros_like(table.data).index_add_(0, ids, grad);
}

}  // namespace

at::Tensor IdsInRowOrder(const at::Tensor& ids, const TokenLayout& layout) {
  return (layout.seq_major ? ids.t() : ids).reshape({layout.rows()});
}

LanguageModelEmbedding::LanguageModelEmbedding(LayerBuild& build)
    : dropout_(build.config.hidden_dropout), dropout_generator_(build.rng.Default()) {
  const TransformerConfig& config = build.config;
  word_embeddings_ = MakeParameter(build, "embedding.word_embeddings.weight",
                                   {config.padded_vocab_size, config.hidden_size},
                                   InitMethod::Normal(config.init_method_std), 0);
  word_embeddings_->is_embedding_or_output_parameter = true;
  if (config.position_embedding != PositionEmbedding::kLearnedAbsolute) return;
  position_embeddings_ = MakeParameter(build, "embedding.position_embeddings.weight",
                                       {config.max_position_embeddings, config.hidden_size},
                                       InitMethod::Normal(config.init_method_std));
}

at::Tensor LanguageModelEmbedding::Forward(const Batch& batch, const TokenLayout& layout,
                                           bool training) const {
  const at::Tensor ids = IdsInRowOrder(batch.tokens, layout);
  const bool learned = position_embeddings_ != nullptr;
  const at::Tensor positions = learned ? IdsInRowOrder(batch.position_ids, layout) : at::Tensor();
  at::Tensor x, mask;
  {
    OpForward forward;
    x = at::index_select(word_embeddings_->data, 0, ids);
    if (learned) x.add_(at::index_select(position_embeddings_->data, 0, positions));
    mask = MakeDropMask(x, training ? dropout_ : 0.0, dropout_generator_);
    if (mask.defined()) x.mul_(mask);
  }
  return RecordOp(x, {word_embeddings_->data, learned ? position_embeddings_->data : at::Tensor()},
                  [ids, positions, mask, words = word_embeddings_, table = position_embeddings_](
                      const TensorList& grads, const NeedsGrad& needs) {
                    const at::Tensor dx = mask.defined() ? at::mul(grads[0], mask) : grads[0];
                    TensorList result(2);
                    if (needs[1]) result[1] = DeliverRowsGrad(*table, positions, dx);
                    if (needs[0]) result[0] = DeliverRowsGrad(*words, ids, dx);
                    return result;
                  });
}

}  // namespace muster
