#include "worker/model/embedding.h"

#include <ATen/ops/add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#include "worker/model/norm.h"
#include "worker/ops/autograd_op.h"

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

// Tokens as rows of this rank's part of the table, [r V/tp, (r+1) V/tp). Those of other ranks read
// row 0 and count as zeros.
struct OwnTokens {
  at::Tensor rows;     // (N)
  at::Tensor foreign;  // (N, 1) bool; undefined when the table is whole
};

OwnTokens FindOwnTokens(const at::Tensor& ids, int64_t table_rows, const TensorParallel& tp) {
  if (tp.size == 1) return {ids, {}};
  const at::Tensor local = ids.sub(tp.rank * table_rows);
  const at::Tensor foreign = local.lt(0).logical_or_(local.ge(table_rows));
  // An id that no rank has must not pass for a zero vector.
  if (ids.is_cpu() && ids.numel() > 0) {
    TORCH_CHECK_INDEX(
        ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < table_rows * tp.size,
        "a token id is not in [0, ", table_rows * tp.size, ") of the padded vocabulary");
  }
  return {local.masked_fill(foreign, 0), foreign.unsqueeze(1)};
}

at::Tensor WithoutForeign(const at::Tensor& x, const at::Tensor& foreign) {
  return foreign.defined() ? x.masked_fill(foreign, 0) : x;
}

}  // namespace

at::Tensor IdsInRowOrder(const at::Tensor& ids, const TokenLayout& layout) {
  return (layout.seq_major ? ids.t() : ids).reshape({layout.rows()});
}

LanguageModelEmbedding::LanguageModelEmbedding(LayerBuild& build)
    : tp_(build.tp),
      dropout_(build.config.hidden_dropout),
      dropout_generator_(HiddenDropoutGenerator(build)) {
  const TransformerConfig& config = build.config;
  word_embeddings_ = MakeParameter(build, "embedding.word_embeddings.weight",
                                   {config.padded_vocab_size, config.hidden_size},
                                   InitMethod::Normal(config.init_method_std), {.dim = 0});
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
  word_embeddings_->AwaitGather();
  if (learned) position_embeddings_->AwaitGather();
  const OwnTokens own = FindOwnTokens(ids, word_embeddings_->data.size(0), tp_);
  at::Tensor x, mask;
  {
    OpForward forward;
    x = at::index_select(word_embeddings_->data, 0, own.rows);
    if (own.foreign.defined()) x.masked_fill_(own.foreign, 0);
    // With learned positions Megatron sums and adds them before it keeps a slice of the sequence:
    // then their gradient is whole on every rank.
    if (tp_.size > 1) x = (learned ? StartAllReduce(tp_, x) : StartReduce(tp_, x)).Wait();
    if (learned) x.add_(at::index_select(position_embeddings_->data, 0, positions));
    if (learned && tp_.sequence_parallel) {
      const int64_t rows = x.size(0) / tp_.size;
      x = x.narrow(0, tp_.rank * rows, rows).clone();
    }
    mask = MakeDropMask(x, training ? dropout_ : 0.0, dropout_generator_);
    if (mask.defined()) x.mul_(mask);
  }
  return RecordOp(x, {word_embeddings_->data, learned ? position_embeddings_->data : at::Tensor()},
                  [tp = tp_, own, positions, mask, words = word_embeddings_,
                   table = position_embeddings_](const TensorList& grads, const NeedsGrad& needs) {
                    at::Tensor dx = mask.defined() ? at::mul(grads[0], mask) : grads[0];
                    if (tp.sequence_parallel) dx = StartGather(tp, dx).Wait();
                    TensorList result(2);
                    if (needs[1]) result[1] = DeliverRowsGrad(*table, positions, dx);
                    if (needs[0]) {
                      result[0] =
                          DeliverRowsGrad(*words, own.rows, WithoutForeign(dx, own.foreign));
                    }
                    return result;
                  });
}

}  // namespace muster
