// Walks through the allocations of a transformer layer, the final norm and the output layer,
// forward and backward, as worker/model makes them: what each operation keeps for its backward
// pass, what it frees, and the temporaries on the way. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/schedule/activation_sizes.h"
#include "common/schedule/expert_rows.h"

namespace muster {

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

class LayerWalk : public ActivationSizes {
 public:
  LayerWalk(const JobSpec& spec, const ResolvedSpec& resolved);

  Tape& tape() { return tape_; }

  // `layer`: its number in the whole model. `open`: the layer before left its sum to be made here;
  // its branch lives until the end of this layer. The layer leaves its own sum open.
  void LayerForward(int64_t layer, bool open);
  void NormForward(bool open);
  void HeadForward();

  // The backward passes give back what the forward ones kept. They take and return the bytes of the
  // residual stream's gradients that are held: of the sum's two parts, or of one where nothing was
  // added.
  double HeadBackward(bool open);  // with the final norm's
  double LayerBackward(int64_t layer, bool open, double gradients);

 private:
  void AttentionForward(const std::string& comm_type);
  void ExactForward(bool keeps_everything);
  void MlpForward(double ffn);
  // With what waits for it: `branch`, the gradient of the block's output where that is a tensor of
  // its own.
  void MlpBackward(double ffn, double branch);

  // Between the projections, with context parallelism (activation_context.cc): from qkv to the
  // output's rows, and back.
  void ContextForward(const std::string& comm_type);
  void ContextBackward(const std::string& comm_type);
  bool draws_masks() const { return m_.attention_dropout > 0; }
  void ExactPieces(double pieces, double keys);
  // Experts in the feed-forward block's place (activation_experts.cc).
  void MoeForward();
  void MoeBackward(double branch);
  void RouterForward();
  void ExpertsForward();
  void ExpertsBackward();
  // Rows of `from` ranks' tokens become those of `to`; what they were goes.
  void Exchange(double from, double to);
  double Rows(double rows) const { return rows * (h_ * e_ + router_e_); }  // and their weights
  double NormBackward(bool open, double dx_before);
  // With the output's gradient in rows held; leaves that of qkv.
  void AttentionBackward(const std::string& comm_type);
  // A column-parallel product: gradient of its input, then of its weight; its output's gradient
  // (`dy`) goes, and so does its input.
  void ColumnBackward(double dy, double outputs);
  void RowBackward(double x, double inputs);
  // A row-parallel product: summed in place, or cut to this rank's rows. Returns what is left.
  double RowSum();

  // Operands and result of a CPU's product of fp16 matrices are widened.
  void Product(double x, double w, double y);
  // The gradient of a weight (elements), by itself before it is added to main_grad; the CPU's
  // library also wants dy's transpose in order. fp64 adds in place.
  void WeightGradient(double dy, double x, double weight);

  Tape tape_;
  const std::vector<bool> has_experts_;
  const std::vector<std::string> comm_types_;
  const ExpertRows expert_rows_;
  const double router_e_;  // bytes of a token's weight for an expert
  double shared_ffn_ = 0, expert_ffn_ = 0;
};

}  // namespace muster
