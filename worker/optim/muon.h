// Muon: momentum whose matrices are orthogonalised (Jordan et al. 2024; reference 7.2; Megatron:
// TensorParallelMuon). For 2-D parameters only.
//
//   M <- beta M + (1 - beta) g;   D = nesterov ? (1 - beta) g + beta M : M
//   p <- p (1 - lr wd) - lr scale extra_scale NewtonSchulz(D)
//
// A fused query-key-value weight is orthogonalised in three parts. A matrix that is split over
// tensor-parallel ranks is orthogonalised as a whole (duplicated: all ranks do the same work on the
// gathered matrix; distributed: the products are added up over the ranks) or each shard alone
// (blockwise). The first two talk to the other ranks, in Prepare; a dropped step leaves no trace.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/optim/newton_schulz.h"
#include "worker/optim/update_rule.h"

namespace muster {

struct MuonOptions {
  enum class ScaleMode { kSpectral, kUnitRmsNorm, kShapeScaling };
  enum class TpMode { kDuplicated, kDistributed, kBlockwise };
  double momentum = 0.9;
  bool nesterov = false;
  NewtonSchulzOptions newton_schulz;
  ScaleMode scale_mode = ScaleMode::kSpectral;
  double extra_scale = 1;
  TpMode tp_mode = TpMode::kDuplicated;
  // Rows of query, key and value in each query group of a fused weight (heads / groups * d, d, d);
  // empty: not split.
  std::vector<int64_t> qkv_rows;
};

// spectral: sqrt(max(rows, cols)); unit_rms_norm: sqrt(rows / cols); shape_scaling:
// sqrt(max(1, rows / cols)).
double MuonScale(MuonOptions::ScaleMode mode, int64_t rows, int64_t cols);

class Muon : public UpdateRule {
 public:
  // The groups that matrices are split over: dense ones, experts' ones. Null: of one rank.
  // Borrowed.
  Muon(MuonOptions options, Communicator* tp, Communicator* expert_tp);

  std::vector<std::string> state_names() const override { return {"momentum_buffer"}; }
  absl::Status Prepare(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                       const kernels::GradFactors& factors) override;
  void Discard() override { updates_.clear(); }
  void Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
              const kernels::GradFactors& factors) override;

 private:
  // The group that `param` is split over and has to be put together from; null: none.
  Communicator* SplitOver(const MainParam& param) const;
  bool IsFusedQkv(const MainParam& param) const;
  // D, (rows, cols) of this rank, main dtype. Reads the momentum, does not write it.
  at::Tensor Direction(const MainParam& param, const kernels::GradFactors& factors) const;
  // scale * extra_scale * NewtonSchulz(d) for all that lies in `d`.
  at::Tensor Orthogonalise(const MainParam& param, const at::Tensor& d) const;
  // The same of a matrix split over `group`, of which `d` is this rank's part.
  absl::StatusOr<at::Tensor> OrthogonaliseSplit(const MainParam& param, const at::Tensor& d,
                                                Communicator& group) const;
  void Apply(const MainParam& param, const at::Tensor& update, const ParamGroup& group,
             const kernels::GradFactors& factors) const;

  const MuonOptions options_;
  Communicator* const tp_;
  Communicator* const expert_tp_;
  // Made by Prepare, used up by Update: this rank's part of each split matrix's update.
  std::unordered_map<const Parameter*, at::Tensor> updates_;
};

}  // namespace muster
