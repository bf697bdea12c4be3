// Experts in the place of a feed-forward block (worker/model/moe_layer.cc, worker/moe), with even
// routing.
#include "common/schedule/activation_layers.h"

namespace muster {
namespace {

constexpr double kIndexBytes = 8;

// Scores of a token for each expert: logits, weights and the choice; the side losses keep more.
struct RouterBytes {
  double kept = 0, alive = 0;  // until the backward pass; until the end of the layer
};

RouterBytes RouterBytesOf(const ModelSpec& m, double tokens, double logit, double wide) {
  const double experts = static_cast<double>(*m.num_experts);
  const double topk = static_cast<double>(m.moe_router_topk);
  bool has_losses = false;
  for (const double coeff : m.moe_aux_loss_coeff) has_losses |= coeff != 0;
  RouterBytes bytes;
  bytes.kept = tokens * topk * (kIndexBytes + wide);
  if (has_losses) bytes.kept += 2 * tokens * experts * wide;
  bytes.alive = tokens * experts * (logit + 1);
  return bytes;
}

}  // namespace

void LayerWalk::Exchange(double from, double to) {
  tape_.Take(Rows(to));
  tape_.Give(Rows(from));
}

void LayerWalk::RouterForward() {
  const double tokens = expert_rows_.tokens, experts = static_cast<double>(*m_.num_experts);
  const RouterBytes bytes = RouterBytesOf(m_, tokens, router_e_, wide_);
  if (m_.moe_input_jitter_eps.value_or(0) != 0) tape_.Take(2 * Hidden());
  if (router_e_ != e_) tape_.Touch((tokens + experts) * h_ * router_e_);
  tape_.Take(bytes.kept + bytes.alive);
  tape_.Touch(3 * tokens * experts * wide_);
}

void LayerWalk::ExpertsForward() {
  Tape& t = tape_;
  const double r = expert_rows_.received;
  const double inner = r * expert_ffn_ * e_, outputs = r * h_ * e_;
  const double wide_inner = router_e_ > e_ ? r * expert_ffn_ * router_e_ : 0;
  if (m_.moe_apply_probs_on_input) t.Take(outputs);
  t.Take(inner * gates());
  if (m_.moe_grouped_gemm) {
    t.Touch(inner + wide_inner);
    t.Touch(inner + outputs);
    t.Take(outputs);
    return;
  }
  t.Take(inner);
  if (!m_.moe_apply_probs_on_input) {
    t.Touch(wide_inner / expert_rows_.local_experts);
    t.Take(inner);  // weighted
  }
  t.Touch(outputs * (expert_rows_.local_experts > 1 ? 2 : 1));
  t.Take(outputs);
}

void LayerWalk::MoeForward() {
  Tape& t = tape_;
  const ExpertRows& rows = expert_rows_;
  RouterForward();
  t.Take(3 * kIndexBytes * rows.sent);  // the order of rows
  const bool sorts = rows.ranks > 1 && rows.local_experts > 1;
  const bool gathers = rows.ranks > 1 && m_.moe_token_dispatcher_type == "allgather";
  const double everyone = rows.ranks * rows.tokens;
  const double width = h_ * e_;
  if (gathers) {
    const double experts = static_cast<double>(*m_.num_experts);
    const double gathered = everyone * (h_ * e_ + experts * (router_e_ + 1));
    t.Take(gathered);
    t.Take(Rows(rows.received));
    t.Give(gathered);
  } else {
    t.Take(Rows(rows.sent));
    if (rows.ep > 1) Exchange(rows.sent, rows.received / rows.etp);
    if (rows.etp > 1) Exchange(rows.received / rows.etp, rows.received);
    if (sorts) t.Touch(Rows(rows.received));
  }
  ExpertsForward();
  const double wide = std::max(width, h_ * router_e_);  // sums are taken in the weights' type
  if (gathers) {
    t.Take(everyone * width);
    t.Give(rows.received * width);
    t.Touch(wide > width ? (everyone + rows.tokens) * wide : 0);
    t.Take(Hidden());
    t.Give(everyone * width);
  } else {
    if (sorts) t.Touch(rows.received * width);
    if (rows.etp > 1) {
      t.Touch(wide > width ? rows.received * wide : 0);
      t.Take(rows.received / rows.etp * width);
      t.Give(rows.received * width);
    }
    if (rows.ep > 1) t.Touch(rows.sent * width);
    t.Take(Hidden());
    t.Give(rows.sent * width);
  }
  if (shared_ffn_ > 0) {
    MlpForward(shared_ffn_);
    if (m_.moe_shared_expert_gate) t.Take(Hidden() + rows.tokens * e_);
    t.Touch(Hidden());
    t.Give(Hidden());
  }
  t.Give(RouterBytesOf(m_, rows.tokens, router_e_, wide_).alive);
}

// With the gradients of the outputs held; leaves those of the rows.
void LayerWalk::ExpertsBackward() {
  Tape& t = tape_;
  const double local = expert_rows_.local_experts, r = expert_rows_.received;
  const double inner = r * expert_ffn_ * e_, outputs = r * h_ * e_;
  const double wide_inner = router_e_ > e_ ? r * expert_ffn_ * router_e_ : 0;
  const double first = expert_ffn_ * gates() * h_, second = expert_ffn_ * h_;  // elements
  const bool weighs = !m_.moe_apply_probs_on_input;
  if (m_.moe_grouped_gemm) {
    t.Take(2 * inner);  // the activation again, its gradient
    t.Touch(2 * wide_inner + inner);
    t.Take(weighs ? inner : 0);
    WeightGradient(outputs / local, inner / local, second);
    t.Take(inner * gates());
    t.Give(inner * (weighs ? 3 : 2));
    WeightGradient(inner * gates() / local, outputs / local, first);
    t.Take(outputs);
    t.Give(2 * inner * gates());
  } else {
    if (local > 1) t.Take(outputs);  // the rows' gradient, to which each expert adds its part
    for (double expert = 0; expert < local; ++expert) {
      t.Take(inner / local);
      WeightGradient(outputs / local, inner / local, second);
      t.Give(weighs ? inner / local : 0);
      if (weighs) t.Touch((2 * wide_inner + inner) / local);
      t.Take(inner * gates() / local);
      t.Give(2 * inner / local);
      t.Take(outputs / local);
      WeightGradient(inner * gates() / local, outputs / local, first);
      t.Give(2 * inner * gates() / local);
      if (local == 1) continue;
      t.Touch(outputs);
      t.Give(outputs / local);
    }
  }
  t.Give(outputs);  // their gradient
  if (!weighs) t.Give(outputs);
}

void LayerWalk::MoeBackward(double branch) {
  Tape& t = tape_;
  const ExpertRows& rows = expert_rows_;
  const bool sorts = rows.ranks > 1 && rows.local_experts > 1;
  const bool gathers = rows.ranks > 1 && m_.moe_token_dispatcher_type == "allgather";
  const double everyone = rows.ranks * rows.tokens, width = h_ * e_;
  if (shared_ffn_ > 0) {
    if (m_.moe_shared_expert_gate) t.Touch(2 * Hidden());
    if (m_.moe_shared_expert_gate) t.Give(Hidden() + rows.tokens * e_);
    MlpBackward(shared_ffn_, 0);
    t.Take(Hidden());  // the input is kept by the router too
  }
  if (gathers) {
    t.Take(everyone * width);
    t.Give(branch);
    t.Take(rows.received * width);
    t.Give(everyone * width);
  } else {
    t.Take(rows.sent * width);
    t.Give(branch);
    if (rows.ep > 1) {
      t.Take(rows.received / rows.etp * width);
      t.Give(rows.sent * width);
    }
    if (rows.etp > 1) {
      t.Take(rows.received * width);
      t.Give(rows.received / rows.etp * width);
    }
    if (sorts) t.Touch(rows.received * width);
  }
  ExpertsBackward();
  t.Give(Rows(rows.received));  // what came
  if (gathers) {
    t.Take(everyone * width);
    t.Give(rows.received * width);
    t.Take(Hidden());
    t.Give(everyone * width);
  } else {
    if (sorts) t.Touch(rows.received * width);
    if (rows.etp > 1) {
      t.Take(rows.received / rows.etp * width);
      t.Give(rows.received * width);
    }
    if (rows.ep > 1) t.Touch(rows.sent * width);
    t.Take(Hidden());
    t.Give(rows.sent * width);
  }
  t.Give(3 * kIndexBytes * rows.sent);
  // The router's part of the input's gradient.
  const double experts = static_cast<double>(*m_.num_experts);
  t.Touch(3 * rows.tokens * experts * wide_);
  if (router_e_ != e_) t.Touch((rows.tokens + experts) * h_ * router_e_);
  t.Touch(2 * Hidden());
  WeightGradient(rows.tokens * experts * e_, Hidden(), experts * h_);
  t.Give(RouterBytesOf(m_, rows.tokens, router_e_, wide_).kept);
  if (m_.moe_input_jitter_eps.value_or(0) != 0) t.Give(2 * Hidden());
  if (shared_ffn_ > 0) t.Give(Hidden());  // one of the parts of the sum
  t.Give(Hidden());                       // x
}

}  // namespace muster
