#include "worker/model/attention.h"

#include <cmath>
#include <utility>

namespace muster {
namespace {

double OutputStd(const TransformerConfig& config) {
  // Megatron's scaled_init_method_normal: std / sqrt(2 L).
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

CpCommType CommTypeOf(const TransformerConfig& config, int64_t layer) {
  const std::vector<CpCommType>& types = config.cp_comm_type;
  return types.empty() ? CpCommType::kP2p : types.at(static_cast<size_t>(layer));
}

}  // namespace

SelfAttention::SelfAttention(LayerBuild& build, const std::string& name,
                             std::shared_ptr<const RotaryTable> rotary, int64_t number)
    : shape_{.heads = build.config.num_attention_heads / build.tp.size,
             .groups = build.config.num_query_groups / build.tp.size,
             .channels = build.config.kv_channels},
      context_{.comm_type = CommTypeOf(build.config, number), .cp = build.cp},
      dropout_(build.config.attention_dropout),
      dropout_generator_(build.rng.ModelParallel()),
      recompute_core_(build.config.recompute == RecomputeMode::kSelective),
      rng_regions_(build.rng.Generators()),
      rotary_(std::move(rotary)),
      linear_proj_(build, name + ".linear_proj",
                   build.config.num_attention_heads * build.config.kv_channels,
                   build.config.hidden_size, build.config.add_bias_linear, OutputStd(build.config)),
      linear_qkv_(build, name + ".linear_qkv",
                  {.in = build.config.hidden_size,
                   .out = (build.config.num_attention_heads + 2 * build.config.num_query_groups) *
                          build.config.kv_channels,
                   .bias = build.config.add_bias_linear || build.config.add_qkv_bias,
                   .init_std = build.config.init_method_std}) {
  if (!build.config.qk_layernorm) return;
  q_layernorm_.emplace(build, name + ".q_layernorm", build.config.kv_channels);
  k_layernorm_.emplace(build, name + ".k_layernorm", build.config.kv_channels);
  q_layernorm_->MarkQkLayernorm();
  k_layernorm_->MarkQkLayernorm();
}

at::Tensor SelfAttention::Forward(const at::Tensor& x, const TokenLayout& layout,
                                  const at::Tensor& mask, bool training) const {
  const at::Tensor qkv = linear_qkv_.Forward(x);
  return linear_proj_.ForwardNoBias(context_.cp.size > 1
                                        ? AttendOverContext(qkv, layout, mask, training)
                                        : Attend(qkv, layout, mask, training));
}

QkvHeads SelfAttention::SplitHeads(const at::Tensor& qkv, const TokenLayout& layout) const {
  QkvHeads heads = SplitQkv(qkv, shape_, layout);
  if (q_layernorm_.has_value()) {
    heads.q = q_layernorm_->Forward(heads.q.contiguous());
    heads.k = k_layernorm_->Forward(heads.k.contiguous());
  }
  if (rotary_ != nullptr) {
    heads.q = rotary_->RotateOp(heads.q);
    heads.k = rotary_->RotateOp(heads.k);
  }
  return heads;
}

at::Tensor SelfAttention::Attend(const at::Tensor& qkv, const TokenLayout& layout,
                                 const at::Tensor& mask, bool training) const {
  const double dropout = training ? dropout_ : 0.0;
  if (dropout == 0 && !mask.defined() && !q_layernorm_.has_value() &&
      FlashAttentionTakes(qkv, shape_)) {
    // Selective recomputation has nothing to do here: the fused operation keeps no scores, its
    // backward computes them again from qkv.
    return FlashCausalAttentionOp(qkv, shape_, layout, rotary_.get());
  }
  const QkvHeads heads = SplitHeads(qkv, layout);
  const Segment core = [shape = shape_, layout,
                        options =
                            ExactAttentionOptions{
                                .mask = mask, .dropout = dropout, .generator = dropout_generator_}](
                           const TensorList& in) {
    return TensorList{ExactAttention({.q = in[0], .k = in[1], .v = in[2]}, shape, layout, options)};
  };
  const TensorList qkv_heads = {heads.q, heads.k, heads.v};
  const bool again = recompute_core_ && training;
  return (again ? Recompute(rng_regions_, qkv_heads, core) : core(qkv_heads))[0];
}

at::Tensor SelfAttention::AttendOverContext(const at::Tensor& qkv, const TokenLayout& layout,
                                            const at::Tensor& mask, bool training) const {
  const double dropout = training ? dropout_ : 0.0;
  ContextPlan plan = context_;
  plan.options = {
      .piece = {.exact = dropout > 0 || mask.defined() || !FlashAttentionTakes(qkv, shape_),
                .dropout = dropout,
                .generator = dropout_generator_},
      .hidden = mask};
  if (!q_layernorm_.has_value()) {
    const Segment core = [shape = shape_, layout, rotary = rotary_, plan](const TensorList& in) {
      return TensorList{ContextAttentionOp(in[0], shape, layout, rotary.get(), plan)};
    };
    return AgainWhereKept(core, {qkv}, dropout, training);
  }
  const Segment core = [layout, plan](const TensorList& in) {
    return TensorList{ContextAttentionOp({.q = in[0], .k = in[1], .v = in[2]}, layout, plan)};
  };
  const QkvHeads heads = SplitHeads(qkv, layout);
  return AgainWhereKept(core, {heads.q, heads.k, heads.v}, dropout, training);
}

// No scores are kept: selective recomputation spares the random masks of dropout alone, so that it
// does not communicate once more without them.
at::Tensor SelfAttention::AgainWhereKept(const Segment& core, const TensorList& inputs,
                                         double dropout, bool training) const {
  const bool again = recompute_core_ && training && dropout > 0;
  return (again ? Recompute(rng_regions_, inputs, core) : core(inputs))[0];
}

}  // namespace muster
