// Fully sharded data parallelism (reference 15): each rank keeps its shard of every gradient, and
// with shard_parameters of every parameter. A unit (a transformer layer) is gathered right before
// its forward and its backward pass and released after; its gradients are reduce-scattered after
// the backward pass of every microbatch, behind that of the units below. What belongs to no unit
// (embedding, final norm, head) is the root: gathered when a forward function first needs it, its
// gradients reduced at the end of the backward pass, where those of a tied weight are complete.
//
//   Megatron-FSDP  optim_grads         parameters stay whole, gathered once a step
//                  optim_grads_params  units as above; the root stays gathered through the step
//                  (no_shard and optim are DistributedDataParallel)
//   torch FSDP2    units as above, embedding and output layer are units too, the rest is the root;
//                  with reshard_after_forward off units stay gathered from forward to backward
//
// Memory beside the shards, by the largest unit: at most two gathered units (the one that computes
// and the next one) and two units' gradients (one being filled, one being reduced), from a pool;
// and the root's values and gradients. The gradients of one microbatch are summed over the ranks
// before they are added to those of the other microbatches: with one microbatch the bits are those
// of the distributed optimizer, with several those of another order of additions.
//
// One thread a call: the rank's, or autograd's while the rank's waits.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/block_pool.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/sharded_piece.h"
#include "worker/parallel/unit_hooks.h"

namespace muster {

struct FsdpOptions {
  bool shard_parameters = true;
  bool reshard_after_forward = true;  // with shard_parameters
  // torch FSDP2's: embedding and output layer are units of their own, and what is no layer is
  // gathered and released once a microbatch, not once a step.
  bool root_by_microbatch = false;
  // Without shard_parameters: the gather after an update runs behind the next forward pass.
  bool overlap_param_gather = false;
  bool grad_reduce_in_fp32 = false;
  bool average_in_collective = false;
  bool calculate_per_token_loss = false;
  bool check_for_nan_in_grad = true;
  // outer_dp_sharding_strategy optim: the optimizer's part is cut over the instances too.
  bool shard_optimizer_over_instances = false;
  // All ranks of a group start from its first one's parameters.
  bool broadcast_params = false;
};

class FullyShardedDataParallel final : public DataParallel, public GradSink, private ParamGatherer {
 public:
  // `chunks` as DistributedDataParallel's; units are told apart by Parameter::unit. Gradients are
  // sharded over groups.intra_dp_cp (experts: intra_expert_dp) and summed over groups.inter, once a
  // step. Takes the parameters' memory. Collective with broadcast_params. INVALID_ARGUMENT for a
  // parameter listed twice; FAILED_PRECONDITION for one of another wrapper that lives still.
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> Create(
      std::vector<std::vector<ParameterPtr>> chunks, const DdpGroups& groups,
      const FsdpOptions& options);
  // Sharded parameters lose their values.
  ~FullyShardedDataParallel() override;

  // The chunk's model calls them around its units (ModelChunk::AddUnitHooks); needed where
  // parameters have units.
  UnitHooks* unit_hooks(int chunk);

  absl::Status StartGradSync(int /*chunk*/) override { return absl::OkStatus(); }
  absl::Status EndBackward(int chunk) override;
  absl::Status FinishGradSync(int chunk) override;
  void ZeroGradBuffer() override;
  void ScaleGradients(double factor) override;
  // Done by Create where it was asked for.
  absl::Status BroadcastParams() override;
  std::vector<OwnedShard> shards() const override;

  absl::Status StartParamSync(int /*chunk*/) override { return absl::OkStatus(); }
  absl::Status SyncParams() override;
  absl::Status ReleaseParams() override;
  bool shards_hold_parameters() const override { return true; }
  bool gathers_behind_forward() const override {
    return options_.shard_parameters || options_.overlap_param_gather;
  }
  // Passes gather what they need at all times: the hooks of reference 6.5 do not exist here.
  void EnableForwardPreHook() override {}
  absl::Status DisableForwardPreHook(bool /*param_sync*/ = true) override {
    return absl::OkStatus();
  }
  bool forward_pre_hook_enabled() const override { return false; }
  void ForgetUnfinished() override;

  int num_chunks() const override { return static_cast<int>(chunks_.size()); }
  std::vector<LocalNorm> LocalNorms() const override;

  void GradComing(Parameter& parameter) override;  // throws CollectiveError
  void GradReady(Parameter&) override {}

  // Of the pool that gathered units and local gradients live in.
  int64_t temporary_bytes() const { return pool_.allocated_bytes(); }

 private:
  struct Chunk;
  // Brings a chunk's passes here. A failed collective travels on as an exception.
  class ChunkHooks final : public UnitHooks {
   public:
    ChunkHooks(FullyShardedDataParallel& owner, Chunk& chunk) : owner_(owner), chunk_(chunk) {}
    void BeforeForward(int unit) override;
    void AfterForward(int unit) override;
    void BeforeBackward(int unit) override;
    void AfterBackward(int unit) override;
    bool closes_units() const override { return true; }

   private:
    FullyShardedDataParallel& owner_;
    Chunk& chunk_;
  };
  // What is gathered, released and reduced together: a collective a piece.
  struct Unit {
    Chunk* chunk = nullptr;
    int number = -1;  // -1: of the root
    std::vector<std::unique_ptr<ShardedPiece>> pieces;
    bool is_queued = false;  // its gradients are being reduced
    bool is_last = false;    // those of the step's last microbatch
  };
  struct Chunk {
    std::vector<ParameterPtr> params;
    std::vector<std::unique_ptr<Unit>> units;  // by number
    std::vector<std::unique_ptr<Unit>> roots;  // one; several with root_by_microbatch
    std::unique_ptr<ChunkHooks> hooks;
    bool at_start = true;  // no unit's forward pass has begun since the last backward pass
    int in_backward = -1;  // the unit between BeforeBackward and AfterBackward
    std::vector<Unit*> all() const;
  };
  struct Place {
    Unit* unit = nullptr;
    ShardedPiece* piece = nullptr;
  };
  FullyShardedDataParallel(at::Device device, const DdpGroups& groups, const FsdpOptions& options);
  Communicator& ShardGroup(bool is_expert) const;
  void AddChunk(std::vector<ParameterPtr> params);
  std::unique_ptr<Unit> MakeUnit(Chunk& chunk, int number, const std::vector<ParameterPtr>& params);
  void SetLastMicrobatch(bool value) override { is_last_microbatch_ = value; }
  void ParamNeeded(Parameter& parameter) override;  // throws CollectiveError

  absl::Status BeforeForward(Chunk& chunk, int unit);
  absl::Status AfterForward(Chunk& chunk, int unit);
  absl::Status BeforeBackward(Chunk& chunk, int unit);
  absl::Status AfterBackward(Chunk& chunk, int unit);
  static absl::Status StartGather(Unit& unit);
  static absl::Status FinishGather(Unit& unit);
  static absl::Status Release(Unit& unit);
  // The reductions finish in the order in which they were started, on every rank.
  absl::Status Reduce(Unit& unit);
  absl::Status FinishOldestReduction();
  absl::Status OpenGrads(const Place& place);

  const DdpGroups groups_;
  const FsdpOptions options_;
  BlockPool pool_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::unordered_map<const Parameter*, Place> place_of_;
  std::deque<Unit*> reducing_;  // oldest first
  bool is_last_microbatch_ = true;
};

}  // namespace muster
