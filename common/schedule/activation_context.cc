// Attention over the tokens of several context parallel ranks (worker/model/cp_attention.cc), from
// the projected rows to the output's and back.
#include "common/schedule/activation_layers.h"

namespace muster {

// Pieces with scores in full (dropout): in sums' precision the product, scaled and masked; the
// probabilities. Of each piece its random mask is kept.
void LayerWalk::ExactPieces(double pieces, double keys) {
  const double scores = n_ * heads_ * keys;
  for (double i = 0; i < pieces; ++i) {
    tape_.Touch(scores * (3 * wide_ + 1) + 3 * Widened(Query()));
    tape_.Take(scores);
  }
}

void LayerWalk::ContextForward(const std::string& comm_type) {
  Tape& t = tape_;
  const bool by_heads = comm_type == "a2a" || comm_type == "a2a+p2p";
  const double rings = comm_type == "a2a" || comm_type == "all_gather" ? 1 : cp_;
  if (m_.qk_layernorm) t.Take(Query() + KeyValue() / 2);  // what the normalisation keeps
  const double before = t.held();
  t.Take(2 * Query() + KeyValue());  // queries, keys and values apart, and the output's rows
  if (by_heads) {
    t.Touch(2 * (Query() + KeyValue()) + Query() + KeyValue());  // sent, received, put in order
    t.Take(Query() + KeyValue());
    t.Take(Query());
  }
  const double narrow = KeyValue();
  if (comm_type == "all_gather") {
    t.Touch(2 * cp_ * narrow);
    t.Take(cp_ * narrow);
  } else if (rings > 1) {
    t.Take(narrow);  // what arrives
  }
  if (draws_masks()) {
    ExactPieces(rings, rings > 1 ? seq_ : seq_ * cp_);
  }
  // The sum over the pieces so far, and the next one's output.
  const double sums = Query() * wide_ / e_;
  const double piece = Query() + (rings > 1 ? sums + (e_ != wide_ ? sums : 0) : 0);
  t.Touch(piece + (heads_ != groups_ ? 2 * Query() : 0));
  const double masks = draws_masks() ? n_ * heads_ * seq_ * cp_ : 0;
  t.Give(t.held() - before - ContextKept(by_heads) - masks);
  t.Give(Qkv());
}

void LayerWalk::ContextBackward(const std::string& comm_type) {
  Tape& t = tape_;
  const bool by_heads = comm_type == "a2a" || comm_type == "a2a+p2p";
  const bool rings = comm_type == "p2p" || comm_type == "a2a+p2p";
  const double before = t.held();
  const double gradients = Query() + KeyValue();
  if (by_heads) {
    t.Touch(3 * Query());
    t.Take(Query());  // the output's gradient by heads
  }
  // Of one piece, with what the kernel widens or spreads.
  double piece = gradients + 2 * Widened(Query()) * (heads_ != groups_ ? 1 : 0);
  if (draws_masks()) {
    piece += n_ * heads_ * seq_ * (rings ? 1 : cp_) * (4 * wide_);
  } else if (comm_type != "a2a" && on_cpu_ && !blocked_attention()) {
    piece += 2 * Query() + KeyValue();  // parts of tensors, which LibTorch's kernel wants dense
  }
  if (rings) {
    t.Take(Query() * wide_ / e_);            // of the queries, summed
    t.Take(KeyValue() * (cp_ > 2 ? 4 : 3));  // keys and their gradients, two buffers
    t.Touch(piece);
    t.Touch(e_ != wide_ ? Query() : 0);
  } else if (comm_type == "all_gather") {
    const double whole = cp_ * KeyValue();
    t.Touch(2 * whole);
    t.Take(2 * whole + gradients);  // keys of all ranks, their gradients, the result
    t.Touch(std::max(piece - KeyValue() + whole, whole));
  } else {
    t.Take(gradients);
    t.Touch(piece);
  }
  t.Give(t.held() - before - gradients);
  if (by_heads) {
    t.Touch(3 * gradients);
    t.Touch(gradients);
  }
  t.Take(Qkv());
  t.Touch(rotates() ? Query() : 0);
  t.Give(gradients + ContextKept(by_heads) + Query());  // and the gradient of the output's rows
  if (draws_masks()) t.Give(n_ * heads_ * seq_ * cp_);
  if (m_.qk_layernorm) t.Give(Query() + KeyValue() / 2);
}

}  // namespace muster
