#include "common/schedule/activation_sizes.h"

namespace muster {

ActivationSizes::ActivationSizes(const JobSpec& spec, const ResolvedSpec& r)
    : m_(spec.model), t_(spec.training) {
  const ParallelSpec& p = spec.parallel;
  const double tp = static_cast<double>(p.tensor_model_parallel_size);
  on_cpu_ = spec.resources.device == "cpu";
  wide_ = t_.fp64 ? 8 : 4;
  e_ = t_.fp16 || t_.bf16 ? 2 : wide_;
  cp_ = static_cast<double>(p.context_parallel_size);
  seq_ = static_cast<double>(m_.seq_length) / cp_;
  n_ = static_cast<double>(t_.micro_batch_size) * seq_;
  sequence_parallel_ = p.sequence_parallel && tp > 1;
  seq_major_ = sequence_parallel_ || p.pipeline_model_parallel_size > 1;
  rows_ = sequence_parallel_ ? n_ / tp : n_;
  h_ = static_cast<double>(m_.hidden_size);
  heads_ = static_cast<double>(m_.num_attention_heads) / tp;
  groups_ = static_cast<double>(r.num_query_groups) / tp;
  d_ = static_cast<double>(r.kv_channels);
  ffn_ = static_cast<double>(r.ffn_hidden_size) / tp;
  vocab_ = static_cast<double>(r.padded_vocab_size) / tp;
}

double ActivationSizes::FlashKept() const {
  double bytes = Qkv() + Query() + n_ * heads_ * wide_;
  if (rotates()) {
    bytes += Query() + KeyValue() / 2;
  } else if (heads_ != groups_) {
    bytes += Query();
  }
  if (seq_major_ && !blocked_attention()) bytes += Query();  // in (B, S) order as well
  return bytes;
}

double ActivationSizes::ScoresKept() const {
  const double scores = Scores(), e = half_on_cpu() ? 4 : e_;
  double bytes = scores * wide_;                                // softmax
  if (m_.attention_dropout > 0) return bytes + 2 * scores * e;  // mask, dropped
  return bytes + (e != wide_ ? scores * e : 0);
}

double ActivationSizes::HeadCopies() const {
  const double normalised = m_.qk_layernorm ? Query() + KeyValue() / 2 : 0;
  return 3 * Widened(Query()) + normalised;
}

}  // namespace muster
