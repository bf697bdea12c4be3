// Sizes of the tensors of one microbatch on one rank, in bytes, as worker/model makes them. Pure.
#pragma once

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

// N = tokens of a microbatch on this rank, H hidden, D channels of a head. With sequence
// parallelism the tensors between the split layers have N / tp rows ("rows"). The spec must outlive
// it.
class ActivationSizes {
 public:
  ActivationSizes(const JobSpec& spec, const ResolvedSpec& resolved);

  static constexpr double kIdBytes = 8;

  double Hidden() const { return rows_ * h_ * e_; }  // the residual stream, and its gradient
  double DropMask() const { return m_.hidden_dropout > 0 ? Hidden() : 0; }
  double Gathered() const { return sequence_parallel_ ? Whole() : 0; }
  double NormStats() const { return rows_ * wide_ * (m_.normalization == "RMSNorm" ? 1 : 2); }
  double Qkv() const { return n_ * (heads_ + 2 * groups_) * d_ * e_; }
  double Query() const { return n_ * heads_ * d_ * e_; }
  double KeyValue() const { return 2 * n_ * groups_ * d_ * e_; }
  // Of a feed-forward block with this part of the inner width.
  double Fc1(double ffn) const { return n_ * ffn * gates() * e_; }
  double Activated(double ffn) const { return n_ * ffn * e_; }
  double gates() const { return m_.swiglu ? 2 : 1; }
  double Logits() const { return n_ * vocab_ * e_; }
  bool half_on_cpu() const { return on_cpu_ && t_.fp16; }
  bool rotates() const { return m_.position_embedding_type == "rope"; }
  // Per head and pair of tokens.
  double Scores() const { return n_ * heads_ * seq_; }
  bool exact_attention() const { return m_.attention_dropout > 0 || m_.qk_layernorm; }
  bool recomputes_scores() const { return t_.recompute_granularity == "selective"; }
  // bf16 on a CPU: attention in blocks writes the output where it is wanted.
  bool blocked_attention() const {
    return on_cpu_ && t_.bf16 && static_cast<int64_t>(seq_) % 64 == 0 && seq_ <= 4096 &&
           static_cast<int64_t>(d_) % 2 == 0;
  }
  double Weight(double rows, double cols) const { return rows * cols * e_; }
  double Whole() const { return n_ * h_ * e_; }  // the residual stream of all rows
  double Widened(double bytes) const { return half_on_cpu() ? 2 * bytes : bytes; }

  // What fused attention keeps: heads (views of qkv where they are not copied), output,
  // log-sum-exp.
  double FlashKept() const;
  // With context parallelism: queries, keys, values, output and log-sum-exp; the output twice where
  // it is computed by heads of the whole sequence.
  double ContextKept(bool by_heads) const {
    return Query() * (by_heads ? 3 : 2) + KeyValue() + n_ * heads_ * wide_;
  }

  // What exact attention keeps of the scores, once its temporaries are gone.
  double ScoresKept() const;
  // Copies of query, key and value by head, and what their normalisation keeps.
  double HeadCopies() const;

 protected:
  const ModelSpec& m_;
  const TrainingSpec& t_;
  double seq_, n_, rows_, h_, heads_, groups_, d_, ffn_, vocab_, cp_;
  double e_, wide_;  // bytes of an element, and of what sums are kept in
  bool on_cpu_, sequence_parallel_, seq_major_;
};

}  // namespace muster
