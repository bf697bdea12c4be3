// One optimizer step in two phases (reference 7.3), so that the trainer can put the world's
// agreement between them: PrepareStep does all communication, CommitStep changes the parameters
// and talks to nobody.
//
//   prepared = PrepareStep(loss_scale)   after FinalizeModelGrads
//   ... world-wide reduction of found_inf and wishes; loss scaler update ...
//   result = CommitStep(prepared)
//   GatherUpdatedParams()                and DistributedDataParallel::SyncParams
//
// Owns main parameters and state, of what this rank updates only: everything; its shards with the
// distributed optimizer; its whole parameters in the layer-wise form. Borrows the groups.
// Deterministic: the bits depend on neither the number of threads nor the bucket layout.
// Thread-safety: one thread (the rank's).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/optim/grad_clip.h"
#include "worker/optim/layer_wise.h"
#include "worker/optim/main_params.h"
#include "worker/optim/optimizer_options.h"
#include "worker/optim/param_groups.h"
#include "worker/optim/update_rule.h"
#include "worker/parallel/owned_shard.h"

namespace muster {

// Everything about a step that other ranks decide with. A value: a rank that missed it can be given
// another's.
struct PreparedStep {
  bool found_inf = false;       // only with skip_non_finite: this replica must skip the step
  double grad_norm = 0;         // before clipping, over the model-parallel group
  bool norm_too_large = false;  // above grad_norm_skip_threshold: no update, but norm and zeros
  double unscale = 1;           // 1 / loss scale
  double clip_coefficient = 1;
  std::optional<int64_t> num_zeros;
};

struct StepResult {
  bool success = false;             // false: skipped, nothing changed
  std::optional<double> grad_norm;  // none with found_inf
  std::optional<int64_t> num_zeros;
};

// One tensor of the optimizer's state, for checkpoints and snapshots. `tensor` is the state itself:
// a loader writes into it.
struct OptimizerStateTensor {
  std::string kind;  // "main_param" (bf16 and fp16 parameters only), "exp_avg", "exp_avg_sq",
                     // "momentum_buffer" (SGD and Muon)
  std::string param;
  at::Tensor tensor;                                 // contiguous, fp32 or fp64
  std::vector<int64_t> global_shape, global_offset;  // of the parameter
  // `tensor` holds elements [flat_begin, flat_begin + numel) of the parameter's own shape
  // local_shape (a distributed optimizer's shard); 0 where it holds all of it.
  std::vector<int64_t> local_shape;
  int64_t flat_begin = 0;
};

struct OptimizerGroupState {
  GroupIdentity identity;
  int64_t step = 0;
};

class Optimizer {
 public:
  // `params`: all parameters of this rank's chunks in order, owned or not: the groups are built
  // from them. `shards`: what this rank updates (DistributedDataParallel::shards). Collective over
  // groups.world. INVALID_ARGUMENT for overrides that contradict each other.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const std::vector<ParameterPtr>& params,
                                                           const std::vector<OwnedShard>& shards,
                                                           const OptimizerGroups& groups,
                                                           const OptimizerOptions& options);
  // The same where every parameter is owned (WholeShards) and tp is 1.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const std::vector<OwnedShard>& shards,
                                                           const GradStatsGroups& groups,
                                                           const OptimizerOptions& options);

  // Takes part in the union of parameter groups of members that are created now. Collective over
  // `world`, as Create is over groups.world.
  absl::Status JoinUnion(Communicator& world) const;

  // All communication of the step. Writes temporaries only: a step that is dropped now changed
  // nothing. Errors: those of the collectives. `loss_scale` is the factor the loss was multiplied
  // with.
  absl::StatusOr<PreparedStep> PrepareStep(double loss_scale = 1.0);
  // found_inf or norm_too_large: skips. Cannot fail. A rank may be given another's flags.
  StepResult CommitStep(const PreparedStep& prepared);
  // After CommitStep: gives every rank the parameters that others own (layer-wise Muon, over dp_cp
  // and expert_dp; collective there). A no-op in all other forms: the distributed optimizer's
  // parameters are gathered by DistributedDataParallel.
  absl::Status GatherUpdatedParams();

  const std::vector<ParamGroup>& param_groups() const { return groups_; }
  // For the coming step. `weight_decay` is the group's own (times identity.wd_mult already).
  void SetGroupLr(int group, double lr, double weight_decay);
  // Of the first group without an lr override: the one that is logged.
  double logged_lr() const;

  // L2 norm of the main parameters over the model (log_params_norm).
  absl::StatusOr<double> ParamsNorm() const;

  // Checkpoints. After a load that wrote the state tensors: LoadGroupStates, MainParamsLoaded.
  // After one that wrote the model only: ReloadMainParams.
  std::vector<OptimizerStateTensor> StateTensors() const;
  std::vector<OptimizerGroupState> GroupStates() const;
  // NOT_FOUND, naming the group, when one of ours is not among `states`; then nothing changed.
  absl::Status LoadGroupStates(const std::vector<OptimizerGroupState>& states);
  void MainParamsLoaded();  // model <- main
  void ReloadMainParams();  // main <- model

 private:
  Optimizer(std::vector<OwnedShard> shards, const OptimizerGroups& groups,
            const OptimizerOptions& options, std::vector<ParamGroup> param_groups);
  UpdateRule& RuleOf(const ParamGroup& group) const;
  std::vector<OwnedShard> Keep(const std::vector<OwnedShard>& shards);
  std::vector<MainParam> MakeMains(const std::vector<OwnedShard>& owned) const;

  const std::vector<OwnedShard> shards_;  // whose gradients make up the norm
  const OptimizerGroups comms_;
  const OptimizerOptions options_;
  // `rule_` updates the groups that name no other optimizer, `scalar_rule_` those of Muon's jobs
  // that do.
  const std::unique_ptr<UpdateRule> rule_, scalar_rule_;
  std::vector<ParamGroup> groups_;
  // Layer-wise: every parameter with its owner in dp_cp and in expert_dp.
  std::vector<OwnedTensor> dense_owners_, expert_owners_;
  std::vector<MainParam> main_params_;
};

}  // namespace muster
