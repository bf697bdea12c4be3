#include "common/schedule/activation_memory.h"

#include <algorithm>

// Names follow worker/model. N = tokens of a microbatch on this rank, H hidden, D channels of a
// head. With sequence parallelism the tensors between the split layers have N / tp rows ("rows").

namespace muster {
namespace {

// Memory in use and its high-water mark.
class Tape {
 public:
  void Take(double bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  void Give(double bytes) { held_ -= bytes; }
  void Touch(double bytes) {  // taken and given back at once
    Take(bytes);
    Give(bytes);
  }
  double held() const { return held_; }
  double peak() const { return peak_; }
  void ForgetPeak() { peak_ = held_; }

 private:
  double held_ = 0, peak_ = 0;
};

class Walk {
 public:
  Walk(const JobSpec& spec, const ResolvedSpec& r) : m_(spec.model), t_(spec.training) {
    const ParallelSpec& p = spec.parallel;
    const double tp = static_cast<double>(p.tensor_model_parallel_size);
    on_cpu_ = spec.resources.device == "cpu";
    wide_ = t_.fp64 ? 8 : 4;
    e_ = t_.fp16 || t_.bf16 ? 2 : wide_;
    seq_ = static_cast<double>(m_.seq_length) / static_cast<double>(p.context_parallel_size);
    n_ = static_cast<double>(t_.micro_batch_size) * seq_;
    sequence_parallel_ = p.sequence_parallel && tp > 1;
    seq_major_ = sequence_parallel_ || p.pipeline_model_parallel_size > 1;
    rows_ = sequence_parallel_ ? n_ / tp : n_;
    h_ = static_cast<double>(m_.hidden_size);
    heads_ = static_cast<double>(m_.num_attention_heads) / tp;
    groups_ = static_cast<double>(r.num_query_groups) / tp;
    d_ = static_cast<double>(r.kv_channels);
    ffn_ = static_cast<double>(r.ffn_hidden_size) / tp;
    if (m_.num_experts) {
      const double etp =
          static_cast<double>(p.expert_tensor_parallel_size.value_or(p.tensor_model_parallel_size));
      ffn_ = static_cast<double>(m_.moe_router_topk *
                                 m_.moe_ffn_hidden_size.value_or(r.ffn_hidden_size)) /
                 etp +
             static_cast<double>(m_.moe_shared_expert_intermediate_size.value_or(0)) / tp;
    }
    vocab_ = static_cast<double>(r.padded_vocab_size) / tp;
  }

  ActivationBytes Chunk(const ChunkLayers& chunk) {
    const auto num_layers = static_cast<int64_t>(chunk.layers.size());
    Tape& t = tape_;
    t.Take(Hidden());  // embeddings, or what the stage before sent
    if (chunk.embedding) {
      t.Take(n_ * kIdBytes * 2);  // tokens and positions, until their rows' gradients are added
      t.Touch(m_.position_embedding_type == "learned_absolute" ? n_ * h_ * e_ : 0);
      t.Take(DropMask());
    }
    bool open = false;  // the last layer's sum is still to be made
    for (int64_t layer = 0; layer < num_layers;) {
      const int64_t group = CheckpointAt(layer, num_layers);
      if (group == 0) {
        LayerForward(open);
        open = true;
        ++layer;
        continue;
      }
      const double before = t.held();
      bool inner_open = false;
      for (int64_t i = 0; i < group; ++i) {
        LayerForward(inner_open);
        inner_open = true;
      }
      t.Take(Hidden());  // the group's output
      t.Give(t.held() - before - Hidden());
      open = false;
      layer += group;
    }
    if (chunk.loss) {
      NormForward(open);
      if (open) t.Give(Hidden());
      HeadForward();
    } else if (open) {
      t.Take(Hidden());  // FinishAdd's sum is the message: its memory goes with it
      t.Give(2 * Hidden());
    }
    ActivationBytes bytes;
    bytes.kept = static_cast<int64_t>(t.held());
    bytes.forward_peak = static_cast<int64_t>(t.peak());
    t.ForgetPeak();
    Backward(chunk, num_layers, open);
    bytes.backward_peak = static_cast<int64_t>(t.peak());
    return bytes;
  }

 private:
  static constexpr double kIdBytes = 8;

  double Hidden() const { return rows_ * h_ * e_; }  // the residual stream, and its gradient
  double DropMask() const { return m_.hidden_dropout > 0 ? Hidden() : 0; }
  double Gathered() const { return sequence_parallel_ ? n_ * h_ * e_ : 0; }
  double NormStats() const { return rows_ * wide_ * (m_.normalization == "RMSNorm" ? 1 : 2); }
  double Qkv() const { return n_ * (heads_ + 2 * groups_) * d_ * e_; }
  double Query() const { return n_ * heads_ * d_ * e_; }
  double KeyValue() const { return 2 * n_ * groups_ * d_ * e_; }
  double Fc1() const { return n_ * ffn_ * (m_.swiglu ? 2 : 1) * e_; }
  double Activated() const { return n_ * ffn_ * e_; }
  // A token is copied for each further expert that it goes to.
  double Copies() const {
    return m_.num_experts ? static_cast<double>(m_.moe_router_topk - 1) * Hidden() : 0;
  }
  double Logits() const { return n_ * vocab_ * e_; }
  bool half_on_cpu() const { return on_cpu_ && t_.fp16; }
  bool rotates() const { return m_.position_embedding_type == "rope"; }
  // Per head and pair of tokens.
  double Scores() const { return n_ * heads_ * seq_; }
  bool exact_attention() const { return m_.attention_dropout > 0 || m_.qk_layernorm; }
  // bf16 on a CPU: attention in blocks writes the output where it is wanted.
  bool blocked_attention() const {
    return on_cpu_ && t_.bf16 && static_cast<int64_t>(seq_) % 64 == 0 && seq_ <= 4096 &&
           static_cast<int64_t>(d_) % 2 == 0;
  }

  // ---- products

  // Operands and result of a CPU's product of half-precision matrices are widened.
  void Product(double x, double w, double y) {
    if (half_on_cpu()) {
      tape_.Take((x + w + y) * 4 / 2);
      tape_.Take(y);
      tape_.Give((x + w + y) * 4 / 2);
      return;
    }
    tape_.Take(y);
  }
  // The gradient of a weight (elements), by itself before it is added to main_grad; the CPU's
  // library also wants dy's transpose in order. fp64 adds in place.
  void WeightGradient(double dy, double x, double weight) {
    if (e_ == 8) return;
    if (half_on_cpu()) return tape_.Touch((dy + x) * 2 + weight * 4 + std::max(dy, x) * 2);
    tape_.Touch(weight * e_ + (on_cpu_ ? dy : 0));
  }

  // ---- forward

  void NormForward(bool open) {
    if (open) tape_.Take(DropMask() + Hidden());
    tape_.Take(Hidden() + NormStats());
  }
  void AttentionForward() {
    Tape& t = tape_;
    t.Touch(Gathered());
    Product(n_ * h_ * e_, Weight((heads_ + 2 * groups_) * d_, h_), Qkv());
    if (exact_attention()) {
      ExactForward(t_.recompute_granularity != "selective");
    } else {
      t.Take(FlashKept() - Qkv());
      if (!blocked_attention() && on_cpu_ && heads_ != groups_) t.Touch(2 * Query());
    }
    t.Take(RowSum());
  }
  // A row-parallel product: summed in place, or cut to this rank's rows.
  double RowSum() {
    if (sequence_parallel_) tape_.Touch(n_ * h_ * e_);
    return Hidden();
  }
  // What fused attention keeps: heads (views of qkv where they are not copied), output,
  // log-sum-exp.
  double FlashKept() const {
    double bytes = Qkv() + Query() + n_ * heads_ * wide_;
    if (rotates()) {
      bytes += Query() + KeyValue() / 2;
    } else if (heads_ != groups_) {
      bytes += Query();
    }
    if (seq_major_ && !blocked_attention()) bytes += Query();  // in (B, S) order as well
    return bytes;
  }
  double Widened(double bytes) const { return half_on_cpu() ? 2 * bytes : bytes; }
  // After the scores' product and its temporaries: what the exact attention keeps of the scores.
  double ScoresKept() const {
    const double scores = Scores(), e = half_on_cpu() ? 4 : e_;
    double bytes = scores * wide_;                                // softmax
    if (m_.attention_dropout > 0) return bytes + 2 * scores * e;  // mask, dropped
    return bytes + (e != wide_ ? scores * e : 0);
  }
  void ExactForward(bool keeps_everything) {
    Tape& t = tape_;
    const double scores = Scores(), e = half_on_cpu() ? 4 : e_;
    const double before = t.held();
    const double copies = 3 * Widened(Query());  // of query, key and value by head
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
  void MlpForward() {
    tape_.Touch(Gathered());
    tape_.Take(Copies());
    Product(n_ * h_ * e_, Weight(ffn_, h_), Fc1());
    tape_.Take(Activated());
    Product(Activated(), Weight(ffn_, h_), RowSum());
  }
  // Keeps; `open`: the layer before left its sum to be made here, and its branch lives until the
  // end of this layer.
  void LayerForward(bool open) {
    Tape& t = tape_;
    NormForward(open);
    AttentionForward();
    NormForward(true);
    MlpForward();
    t.Give(Hidden());            // attention's branch
    if (open) t.Give(Hidden());  // the branch before
  }
  double Weight(double rows, double cols) const { return rows * cols * e_; }

  void HeadForward() {
    tape_.Touch(Gathered());
    tape_.Take(n_ * (kIdBytes + 4));  // labels and loss mask
    Product(n_ * h_ * e_, Weight(vocab_, h_), Logits());
    tape_.Take(2 * n_ * wide_);  // log-sum-exp and loss
  }

  // ---- backward: gives back what forward kept

  void Backward(const ChunkLayers& chunk, int64_t num_layers, bool open) {
    Tape& t = tape_;
    double gradients = 0;  // of the residual stream, held
    if (chunk.loss) {
      Product(Logits(), Weight(vocab_, h_), n_ * h_ * e_);  // dx
      t.Touch(Gathered());
      WeightGradient(Logits(), n_ * h_ * e_, vocab_ * h_);
      if (sequence_parallel_) t.Take(Hidden());
      if (sequence_parallel_) t.Give(n_ * h_ * e_);
      t.Give(Logits() + Hidden());  // y
      gradients = NormBackward(open, 0);
    } else {
      t.Take(Hidden());  // received
      gradients = Hidden();
    }
    for (int64_t layer = num_layers; layer > 0;) {
      const int64_t group = GroupEndingAt(layer, num_layers);
      if (group == 0) {
        const bool first_is_open = layer > 1 && GroupEndingAt(layer - 1, num_layers) == 0;
        gradients = LayerBackward(first_is_open, gradients);
        --layer;
        continue;
      }
      bool inner_open = false;
      for (int64_t i = 0; i < group; ++i) {  // once more, kept
        LayerForward(inner_open);
        inner_open = true;
      }
      t.Take(Hidden());
      t.Give(2 * Hidden());
      for (int64_t i = group; i > 0; --i) gradients = LayerBackward(i > 1, gradients);
      layer -= group;
    }
  }

  // The gradients of the sum's two parts; those of one part when nothing was added.
  double NormBackward(bool open, double dx_before) {
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
  // A column-parallel product: gradient of its input, then of its weight; its output's gradient
  // (`dy`) goes, and so does its input.
  void ColumnBackward(double dy, double outputs) {
    Tape& t = tape_;
    Product(dy, Weight(outputs, h_), n_ * h_ * e_);
    t.Touch(Gathered());
    WeightGradient(dy, n_ * h_ * e_, outputs * h_);
    if (sequence_parallel_) t.Take(Hidden());
    if (sequence_parallel_) t.Give(n_ * h_ * e_);
    t.Give(dy + Hidden());
  }
  void RowBackward(double x, double inputs) {
    Tape& t = tape_;
    t.Take(Gathered());
    Product(n_ * h_ * e_, Weight(inputs, h_), x);
    WeightGradient(n_ * h_ * e_, x, inputs * h_);
    t.Give(Gathered());
  }

  // Returns the gradients held after it.
  double LayerBackward(bool open, double gradients) {
    Tape& t = tape_;
    const double branch = m_.hidden_dropout > 0 && gradients > Hidden() ? Hidden() : 0;
    RowBackward(Activated(), ffn_);
    t.Give(Activated() + branch);  // what the product kept, and its output's gradient
    t.Take(Fc1());
    t.Give(Activated() + Fc1());
    ColumnBackward(Fc1(), ffn_ * (m_.swiglu ? 2 : 1));
    t.Give(Copies());
    const double after_mlp = NormBackward(true, gradients - branch);
    RowBackward(Query(), heads_ * d_);
    t.Give(after_mlp - Hidden());
    AttentionBackward();
    ColumnBackward(Qkv(), (heads_ + 2 * groups_) * d_);
    return NormBackward(open, Hidden());
  }

  // With the output's gradient in rows held; leaves qkv's.
  void AttentionBackward() {
    Tape& t = tape_;
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
    double kept = 3 * Widened(Query()) + ScoresKept();
    if (t_.recompute_granularity == "selective") {
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

  // ---- recomputation (worker/model/transformer_block.cc)

  int64_t CheckpointAt(int64_t first, int64_t num_layers) const {
    if (t_.recompute_granularity != "full") return 0;
    const int64_t count = t_.recompute_num_layers.value_or(1);
    if (t_.recompute_method == "block") return first < count ? 1 : 0;
    return std::min(count, num_layers - first);
  }
  int64_t GroupEndingAt(int64_t end, int64_t num_layers) const {
    for (int64_t first = 0; first < end;) {
      const int64_t group = CheckpointAt(first, num_layers);
      if (group > 0 && first + group == end) return group;
      first += std::max<int64_t>(1, group);
    }
    return 0;
  }

  const ModelSpec& m_;
  const TrainingSpec& t_;
  double seq_, n_, rows_, h_, heads_, groups_, d_, ffn_, vocab_;
  double e_, wide_;  // bytes of an element, and of what sums are kept in
  bool on_cpu_, sequence_parallel_, seq_major_;
  Tape tape_;
};

}  // namespace

ActivationBytes ChunkActivations(const JobSpec& spec, const ResolvedSpec& resolved,
                                 const ChunkLayers& chunk) {
  return Walk(spec, resolved).Chunk(chunk);
}

}  // namespace muster
