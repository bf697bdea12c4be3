#include "worker/model/gpt.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/model/lm_head.h"

namespace muster {
namespace {

// Megatron starts the last stage's copy of a tied embedding from zeros and sums it over the
// embedding group, so that both hold the first stage's values.
absl::Status ShareTiedEmbedding(const ParallelContext& parallel,
                                const std::vector<ParameterPtr>& parameters) {
  for (const ParameterPtr& parameter : parameters) {
    if (!parameter->shared_embedding) continue;
    RETURN_IF_ERROR(
        parallel.Group("embedding").AllReduce(parameter->data.detach(), ReduceOp::kSum)->Wait());
  }
  return absl::OkStatus();
}

TensorParallel TensorParallelOf(const ModelBuildContext& context) {
  Communicator& group = context.parallel.Group("tp");
  if (group.size() == 1) return {};
  return {.comm = &group,
          .rank = group.rank(),
          .size = group.size(),
          .sequence_parallel = context.spec.parallel.sequence_parallel};
}

// Null for a group that the rank is alone in.
Communicator* PeersOf(const ModelBuildContext& context, const char* group) {
  Communicator& comm = context.parallel.Group(group);
  return comm.size() == 1 ? nullptr : &comm;
}

ContextParallel ContextParallelOf(const ModelBuildContext& context) {
  const Communicator& group = context.parallel.Group("cp");
  ContextParallel cp{.comm = PeersOf(context, "cp"), .rank = group.rank(), .size = group.size()};
  // One level is nobody's: a2a+p2p has two.
  if (context.spec.parallel.hierarchical_context_parallel_sizes.size() < 2) return cp;
  cp.a2a = PeersOf(context, "hcp_0");
  cp.p2p = PeersOf(context, "hcp_1");
  return cp;
}

ExpertParallel ExpertParallelOf(const ModelBuildContext& context) {
  const Communicator& ep = context.parallel.Group("ep");
  const Communicator& etp = context.parallel.Group("expert_tp");
  return {.ep = PeersOf(context, "ep"),
          .etp = PeersOf(context, "expert_tp"),
          .tp_ep = PeersOf(context, "tp_ep"),
          .ep_rank = ep.rank(),
          .ep_size = ep.size(),
          .etp_rank = etp.rank(),
          .etp_size = etp.size(),
          .own_gradient_group = ep.size() > 1 || etp.size() != context.parallel.Group("tp").size(),
          .tp_cp = PeersOf(context, "tp_cp"),
          .tp_dp_cp = PeersOf(context, "tp_dp_cp")};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GptModel>> GptModel::Create(const ModelBuildContext& context) {
  ASSIGN_OR_RETURN(const TransformerConfig config,
                   TransformerConfig::FromSpec(context.spec, context.sizes));
  const bool pipelined = context.spec.parallel.pipeline_model_parallel_size > 1;
  const bool tied = !config.untie_embeddings_and_output_weights;
  const TensorParallel tp = TensorParallelOf(context);
  auto model =
      std::make_unique<GptModel>(config,
                                 Placement{.pre_process = context.pre_process,
                                           .post_process = context.post_process,
                                           .layer_offset = context.layer_offset,
                                           .num_layers = context.num_layers,
                                           .separate_tied_output = tied && !context.pre_process,
                                           .seq_major = pipelined || tp.sequence_parallel},
                                 Groups{.tp = tp,
                                        .cp = ContextParallelOf(context),
                                        .ep = ExpertParallelOf(context),
                                        .experts = &context.experts},
                                 context.rng, context.device, context.params_dtype);
  if (tied && pipelined && (context.pre_process || context.post_process)) {
    RETURN_IF_ERROR(ShareTiedEmbedding(context.parallel, model->parameters()));
  }
  return model;
}

GptModel::GptModel(const TransformerConfig& config, const Placement& placement,
                   const Groups& groups, RngTracker& rng, at::Device device, at::ScalarType dtype)
    : placement_(placement), tp_(groups.tp) {
  const TensorParallel& tp = tp_;
  MUSTER_CHECK_MSG(!tp.sequence_parallel || (placement.seq_major && tp.size > 1),
                   "slices of the sequence need rows in (S, B) order and peers");
  LayerBuild build{.config = config,
                   .tp = tp,
                   .cp = groups.cp,
                   .ep = groups.ep,
                   .experts = groups.experts,
                   .rng = rng,
                   .device = device,
                   .dtype = dtype,
                   .parameters = parameters_};
  const bool tied = !config.untie_embeddings_and_output_weights;
  if (placement.pre_process) {
    embedding_.emplace(build);
    // Set only where the last stage holds a copy (reference 7.3).
    embedding_->word_embeddings()->shared_embedding = tied && !placement.post_process;
  }
  std::shared_ptr<const RotaryTable> rotary;
  if (config.position_embedding == PositionEmbedding::kRope) {
    rotary = std::make_shared<RotaryTable>(config, dtype, device,
                                           ContextPlace{groups.cp.rank, groups.cp.size});
  }
  layers_.emplace(build, placement.layer_offset, placement.num_layers, rotary);
  if (!placement.post_process) return;
  final_layernorm_.emplace(build, "decoder.final_layernorm", config.hidden_size);
  if (tied && !placement.separate_tied_output) {
    output_weight_ = embedding_->word_embeddings();
    return;
  }
  output_weight_ = MakeParameter(
      build, "output_layer.weight", {config.padded_vocab_size, config.hidden_size},
      tied ? InitMethod::Zeros() : InitMethod::Normal(config.init_method_std), {.dim = 0});
  output_weight_->is_embedding_or_output_parameter = true;
  output_weight_->shared_embedding = tied;
  output_weight_->shared = tied;
}

at::Tensor GptModel::Forward(const Batch& batch, const at::Tensor& input) {
  TokenLayout layout{.seq_major = placement_.seq_major};
  at::Tensor hidden;  // (N, H), or this rank's rows of it
  if (placement_.pre_process) {
    layout.batch = batch.tokens.size(0);
    layout.seq = batch.tokens.size(1);
    hidden = embedding_->Forward(batch, layout, training_);
  } else {
    MUSTER_CHECK_MSG(input.defined(), "a later stage needs the hidden states of the one before");
    layout.seq = input.size(0) * tp_.sequence_parts();  // (S, B, H), or this rank's slice of it
    layout.batch = input.size(1);
    hidden = input.reshape({input.size(0) * input.size(1), input.size(2)});
  }
  MUSTER_CHECK_MSG(layout.seq % tp_.sequence_parts() == 0, "the sequence is cut into equal slices");
  const PendingAdd out = layers_->Forward(hidden, layout, batch.attention_mask, training_);
  if (placement_.post_process) {
    return Output(final_layernorm_->Forward(out).y, batch, layout);
  }
  const at::Tensor rows = FinishAdd(out);
  return rows.view({layout.seq / tp_.sequence_parts(), layout.batch, rows.size(1)});
}

at::Tensor GptModel::Output(const at::Tensor& hidden, const Batch& batch,
                            const TokenLayout& layout) const {
  // Rows back to (B, S, ...).
  const auto batch_first = [&](const at::Tensor& rows, int64_t width) {
    if (layout.seq_major) return rows.view({layout.seq, layout.batch, width}).transpose(0, 1);
    return rows.view({layout.batch, layout.seq, width});
  };
  if (batch.labels.defined()) {
    const at::Tensor losses =
        LmHeadLossOp(hidden, output_weight_, IdsInRowOrder(batch.labels, layout), tp_);
    return batch_first(losses, 1).squeeze(2);
  }
  at::Tensor logits = ColumnParallelOp(hidden, output_weight_, nullptr, tp_);
  if (tp_.size > 1) logits = GatherColumnsOp(tp_, logits);
  return batch_first(logits, logits.size(1));
}

}  // namespace muster
