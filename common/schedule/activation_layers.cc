#include "common/schedule/activation_layers.h"

#include "common/spec/per_layer.h"

namespace muster {
namespace {

double RouterBytes(const JobSpec& spec) {
  const auto& dtype = spec.model.moe_router_dtype;
  if (spec.training.fp64 || dtype == "fp64") return 8;
  return dtype == "fp32" || !(spec.training.fp16 || spec.training.bf16) ? 4 : 2;
}

}  // namespace

LayerWalk::LayerWalk(const JobSpec& spec, const ResolvedSpec& resolved)
    : ActivationSizes(spec, resolved),
      has_experts_(ExpertLayers(spec.model)),
      comm_types_(CpCommTypes(spec)),
      expert_rows_(ExpertRowsOf(spec)),
      router_e_(RouterBytes(spec)) {
  const ParallelSpec& p = spec.parallel;
  const int64_t tp = p.tensor_model_parallel_size;
  shared_ffn_ = static_cast<double>(m_.moe_shared_expert_intermediate_size.value_or(0)) /
                static_cast<double>(tp);
  expert_ffn_ = static_cast<double>(m_.moe_ffn_hidden_size.value_or(resolved.ffn_hidden_size)) /
                static_cast<double>(p.expert_tensor_parallel_size.value_or(tp));
}

void LayerWalk::Product(double x, double w, double y) {
  if (half_on_cpu()) {
    tape_.Take((x + w + y) * 4 / 2);
    tape_.Take(y);
    tape_.Give((x + w + y) * 4 / 2);
    return;
  }
  tape_.Take(y);
}

void LayerWalk::WeightGradient(double dy, double x, double weight) {
  if (e_ == 8) return;
  if (half_on_cpu()) return tape_.Touch((dy + x) * 2 + weight * 4 + std::max(dy, x) * 2);
  tape_.Touch(weight * e_ + (on_cpu_ ? dy : 0));
}

void LayerWalk::NormForward(bool open) {
  if (open) tape_.Take(DropMask() + Hidden());
  tape_.Take(Hidden() + NormStats());
}

void LayerWalk::AttentionForward(const std::string& comm_type) {
  Tape& t = tape_;
  t.Touch(Gathered());
  Product(Whole(), Weight((heads_ + 2 * groups_) * d_, h_), Qkv());
  if (cp_ > 1) {
    ContextForward(comm_type);
  } else if (exact_attention()) {
    ExactForward(!recomputes_scores());
  } else {
    t.Take(FlashKept() - Qkv());
    if (!blocked_attention() && on_cpu_ && heads_ != groups_) t.Touch(2 * Query());
  }
  t.Take(RowSum());
}

double LayerWalk::RowSum() {
  if (sequence_parallel_) tape_.Touch(Whole());
  return Hidden();
}

void LayerWalk::ExactForward(bool keeps_everything) {
  Tape& t = tape_;
  const double scores = Scores(), e = half_on_cpu() ? 4 : e_;
  const double before = t.held();
  const double copies = HeadCopies();
  t.Take(copies);
  t.Take(2 * scores * e);  // the product, scaled
  t.Give(scores * e);
  if (e != wide_) t.Take(scores * wide_);
  t.Take(2 * scores * wide_);  // masked, softmax
  if (e != wide_) t.Take(scores * e);
  t.Give(scores * wide_ * (e != wide_ ? 2 : 1));
  if (m_.attention_dropout > 0) {
    t.Take(2 * scores * e);
    if (e != wide_) t.Give(scores * e);
  }
  t.Touch(2 * Widened(Query()));  // by head, and in rows
  const double kept =
      (keeps_everything ? copies - Qkv() + ScoresKept() : 0) + Query();  // qkv is kept by copies
  t.Give(t.held() - before - kept);
}

void LayerWalk::MlpForward(double ffn) {
  tape_.Touch(Gathered());
  Product(Whole(), Weight(ffn * gates(), h_), Fc1(ffn));
  tape_.Take(Activated(ffn));
  Product(Activated(ffn), Weight(ffn, h_), RowSum());
}

void LayerWalk::LayerForward(int64_t layer, bool open) {
  Tape& t = tape_;
  NormForward(open);
  AttentionForward(comm_types_[layer]);
  NormForward(true);
  if (has_experts_[layer]) {
    MoeForward();
  } else {
    MlpForward(ffn_);
  }
  t.Give(Hidden());            // attention's branch
  if (open) t.Give(Hidden());  // the branch before
}

void LayerWalk::HeadForward() {
  tape_.Touch(Gathered());
  tape_.Take(n_ * (kIdBytes + 4));  // labels and loss mask
  Product(Whole(), Weight(vocab_, h_), Logits());
  tape_.Take(2 * n_ * wide_);  // log-sum-exp and loss
}

double LayerWalk::HeadBackward(bool open) {
  Product(Logits(), Weight(vocab_, h_), Whole());  // dx
  tape_.Touch(Gathered());
  WeightGradient(Logits(), Whole(), vocab_ * h_);
  if (sequence_parallel_) tape_.Take(Hidden());
  if (sequence_parallel_) tape_.Give(Whole());
  tape_.Give(Logits() + Hidden());  // y
  return NormBackward(open, 0);
}

double LayerWalk::NormBackward(bool open, double dx_before) {
  Tape& t = tape_;
  t.Take(Hidden());
  const double dbranch = open ? DropMask() : 0;
  t.Take(dbranch);
  t.Touch(3 * rows_ / 64 * h_ * wide_);
  t.Give(Hidden() + dx_before);  // dy, and the residual's gradient so far
  t.Give(NormStats());
  if (open) t.Give(DropMask() + Hidden());  // x
  return Hidden() + dbranch;
}

void LayerWalk::ColumnBackward(double dy, double outputs) {
  Tape& t = tape_;
  Product(dy, Weight(outputs, h_), Whole());
  t.Touch(Gathered());
  WeightGradient(dy, Whole(), outputs * h_);
  if (sequence_parallel_) t.Take(Hidden());
  if (sequence_parallel_) t.Give(Whole());
  t.Give(dy + Hidden());
}

void LayerWalk::RowBackward(double x, double inputs) {
  Tape& t = tape_;
  t.Take(Gathered());
  Product(Whole(), Weight(inputs, h_), x);
  WeightGradient(Whole(), x, inputs * h_);
  t.Give(Gathered());
}

void LayerWalk::MlpBackward(double ffn, double branch) {
  Tape& t = tape_;
  RowBackward(Activated(ffn), ffn);
  t.Give(Activated(ffn) + branch);  // what the product kept, and its output's gradient
  t.Take(Fc1(ffn));
  t.Give(Activated(ffn) + Fc1(ffn));
  ColumnBackward(Fc1(ffn), ffn * gates());
}

double LayerWalk::LayerBackward(int64_t layer, bool open, double gradients) {
  Tape& t = tape_;
  const double branch = m_.hidden_dropout > 0 && gradients > Hidden() ? Hidden() : 0;
  if (has_experts_[layer]) {
    MoeBackward(branch);
  } else {
    MlpBackward(ffn_, branch);
  }
  const double after_mlp = NormBackward(true, gradients - branch);
  RowBackward(Query(), heads_ * d_);
  t.Give(after_mlp - Hidden());
  AttentionBackward(comm_types_[layer]);
  ColumnBackward(Qkv(), (heads_ + 2 * groups_) * d_);
  return NormBackward(open, Hidden());
}

void LayerWalk::AttentionBackward(const std::string& comm_type) {
  Tape& t = tape_;
  if (cp_ > 1) return ContextBackward(comm_type);
  if (!exact_attention()) {
    t.Take(Qkv());
    if (!blocked_attention() && on_cpu_) {
      t.Touch(3 * Widened(Query()) + (heads_ != groups_ ? 2 * Query() : 0));
    } else if (rotates() || heads_ != groups_) {
      t.Touch(2 * (Query() + KeyValue() / 2));
    }
    t.Give(FlashKept() + Query());
    return;
  }
  const double e = half_on_cpu() ? 4 : e_, scores = Scores();
  double kept = HeadCopies() + ScoresKept();
  if (recomputes_scores()) {
    ExactForward(true);
    t.Take(Qkv());
    kept += Qkv() + Query();
  }
  const double before = t.held();
  t.Take(scores * e + Widened(Query()));  // gradients of probabilities and values
  double left = ScoresKept() - scores * wide_;
  if (m_.attention_dropout > 0) {
    t.Give(scores * e);  // dropped
    t.Take(scores * e);
    t.Give(2 * scores * e);  // incoming, mask
    left = 0;
  }
  if (e != wide_) {
    t.Take(scores * wide_);
    t.Give(scores * e);
  }
  t.Give(left);
  t.Take(scores * wide_);      // of the softmax
  t.Give(2 * scores * wide_);  // incoming, and the softmax
  t.Touch(scores * wide_);     // masked
  t.Touch(scores * e);         // scaled
  t.Touch(2 * Widened(Query()));
  t.Give(t.held() - before);
  t.Take(Qkv());
  t.Give(kept + 2 * Query());  // the output and its gradient in rows
}

}  // namespace muster
