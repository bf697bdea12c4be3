#include "worker/train/job_state.h"

#include <ATen/core/Tensor.h>

#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/spec/data_sharding.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/fsdp.h"

namespace muster {

at::ScalarType ParamsDtype(const JobSpec& spec) {
  if (spec.training.bf16) return at::kBFloat16;
  if (spec.training.fp16) return at::kHalf;
  if (spec.training.fp64) return at::kDouble;
  return at::kFloat;
}

std::vector<ParameterPtr> ParametersOf(const JobState& state) {
  std::vector<ParameterPtr> parameters;
  for (const auto& chunk : state.chunks) {
    const std::vector<ParameterPtr>& more = chunk->parameters();
    parameters.insert(parameters.end(), more.begin(), more.end());
  }
  return parameters;
}

namespace {

DdpOptions DdpOptionsOf(const JobSpec& spec, const ResolvedSpec& sizes, int virtual_pp) {
  DdpOptions options;
  options.overlap_grad_reduce = spec.parallel.overlap_grad_reduce;
  options.grad_reduce_in_fp32 = sizes.grads_in_fp32;
  options.average_in_collective = spec.parallel.ddp_average_in_collective;
  options.calculate_per_token_loss = spec.training.calculate_per_token_loss;
  options.check_for_nan_in_grad =
      spec.rerun.check_for_nan_in_loss && !(spec.training.fp16 && !spec.training.loss_scale);
  options.bucket_size = spec.parallel.ddp_bucket_size;
  options.num_buckets = spec.parallel.ddp_num_buckets;
  const DataSharding sharding = DataShardingOf(spec.parallel);
  options.use_distributed_optimizer = sharding.optimizer;
  options.overlap_param_gather = sharding.optimizer && sharding.overlap_param_gather;
  // Effective only where the schedule dispatches the gathers.
  options.align_param_gather = ScheduleOptionsOf(spec, virtual_pp, 1).has_param_sync_func;
  options.pad_buckets_for_high_nccl_busbw = spec.parallel.pad_buckets_for_high_nccl_busbw;
  return options;
}

FsdpOptions FsdpOptionsOf(const JobSpec& spec, const DdpOptions& ddp) {
  const DataSharding sharding = DataShardingOf(spec.parallel);
  FsdpOptions options;
  options.shard_parameters = sharding.parameters;
  options.reshard_after_forward = !sharding.keeps_units_gathered;
  options.root_by_microbatch = spec.parallel.use_torch_fsdp2;
  options.overlap_param_gather = sharding.overlap_param_gather;
  options.grad_reduce_in_fp32 = ddp.grad_reduce_in_fp32;
  options.average_in_collective = ddp.average_in_collective;
  options.calculate_per_token_loss = ddp.calculate_per_token_loss;
  options.check_for_nan_in_grad = ddp.check_for_nan_in_grad;
  options.shard_optimizer_over_instances = sharding.optimizer_over_instances;
  options.broadcast_params = spec.training.data_parallel_random_init;
  return options;
}

// What holds, gathers and reduces the chunks' parameters and gradients. Collective with
// data_parallel_random_init.
absl::StatusOr<std::unique_ptr<DataParallel>> WrapChunks(const JobState& state) {
  const JobSpec& spec = state.spec;
  std::vector<std::vector<ParameterPtr>> parameters;
  for (const auto& chunk : state.chunks) parameters.push_back(chunk->parameters());
  const DdpGroups groups = DdpGroups::Of(state.parallel);
  const DdpOptions options = DdpOptionsOf(spec, state.sizes, static_cast<int>(state.chunks.size()));
  if (DataShardingOf(spec.parallel).by_unit) {
    ASSIGN_OR_RETURN(std::unique_ptr<FullyShardedDataParallel> fsdp,
                     FullyShardedDataParallel::Create(std::move(parameters), groups,
                                                      FsdpOptionsOf(spec, options)));
    for (size_t i = 0; i < state.chunks.size(); ++i)
      state.chunks[i]->AddUnitHooks(fsdp->unit_hooks(static_cast<int>(i)));
    return fsdp;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<DistributedDataParallel> ddp,
                   DistributedDataParallel::Create(std::move(parameters), groups, options));
  if (spec.training.data_parallel_random_init) RETURN_IF_ERROR(ddp->BroadcastParams());
  return ddp;
}

// The chunks of this rank's virtual stages, in order (reference 2.1). Collective over the embedding
// group where the embedding is tied.
absl::Status BuildChunks(ModelProvider& provider, JobState& state) {
  ASSIGN_OR_RETURN(const LayerSplit split, LayerSplitOf(state.spec));
  ASSIGN_OR_RETURN(const LayerTable table, AssignLayers(split));
  state.layers = table[state.parallel.coordinates().pp];
  for (const ChunkLayers& holds : state.layers) {
    ModelBuildContext context{.spec = state.spec,
                              .sizes = state.sizes,
                              .parallel = state.parallel,
                              .rng = state.rng,
                              .experts = *state.experts,
                              .device = state.device,
                              .params_dtype = ParamsDtype(state.spec),
                              .pre_process = holds.embedding,
                              .post_process = holds.loss,
                              .layer_offset = holds.layers.empty() ? 0 : holds.layers.front(),
                              .num_layers = static_cast<int64_t>(holds.layers.size())};
    if (state.layers.size() > 1) context.vp_stage = static_cast<int>(state.chunks.size());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelChunk> chunk, provider.Build(context));
    state.chunks.push_back(std::move(chunk));
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

// `groups_of`: what the optimizer's parameter groups are united over; null: `world`.
absl::StatusOr<std::unique_ptr<JobState>> Build(const JobSpec& spec,
                                                const ProviderRegistry& providers,
                                                CommunicatorPtr world, c10::Device device,
                                                Communicator* groups_of) {
  ASSIGN_OR_RETURN(std::shared_ptr<ModelProvider> model_provider,
                   providers.model_provider(spec.model.model_provider));
  ASSIGN_OR_RETURN(std::shared_ptr<ForwardStep> forward_step,
                   providers.forward_step(spec.model.forward_step));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(spec.data.tokenizer_type, spec.data.tokenizer_model));
  const ResolvedSpec sizes = Resolve(spec, tokenizer->vocab_size());

  ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create(TopologyOf(spec)));
  const int rank = world->rank();
  ASSIGN_OR_RETURN(ParallelContext parallel,
                   ParallelContext::Create(topology, rank, std::move(world)));
  const RankCoordinates& where = parallel.coordinates();
  ASSIGN_OR_RETURN(RngTracker rng,
                   RngTracker::Create(spec.training.seed,
                                      RngCoordinates{.tp_rank = where.tp,
                                                     .pp_rank = where.pp,
                                                     .dp_rank = where.dp,
                                                     .ep_rank = where.ep,
                                                     .etp_rank = where.expert_tp},
                                      spec.training.data_parallel_random_init, device.is_cuda()));
  auto state = std::make_unique<JobState>(JobState{.spec = spec,
                                                   .sizes = sizes,
                                                   .device = device,
                                                   .parallel = std::move(parallel),
                                                   .rng = std::move(rng),
                                                   .forward_step = std::move(forward_step)});

  ASSIGN_OR_RETURN(state->microbatches,
                   MicrobatchCalculator::Create(MicrobatchOptionsOf(spec, sizes)));
  state->train_iters = sizes.train_iters;

  RETURN_IF_ERROR(BuildChunks(*model_provider, *state));
  if (spec.training.skip_train) return state;

  ASSIGN_OR_RETURN(state->ddp, WrapChunks(*state));

  ASSIGN_OR_RETURN(const OptimizerOptions optimizer_options, OptimizerOptions::FromSpec(spec));
  OptimizerGroups groups = OptimizerGroups::Of(state->parallel, state->spec);
  if (groups_of != nullptr) groups.world = groups_of;
  ASSIGN_OR_RETURN(state->optimizer, Optimizer::Create(ParametersOf(*state), state->ddp->shards(),
                                                       groups, optimizer_options));
  ASSIGN_OR_RETURN(const LrScheduleOptions lr_options, LrScheduleOptionsOf(spec, sizes));
  ASSIGN_OR_RETURN(state->lr_schedule, LrSchedule::Create(lr_options));
  ApplySchedule(*state->lr_schedule, *state->optimizer);
  ASSIGN_OR_RETURN(state->loss_scaler, LossScaler::Create(LossScalerOptionsOf(spec)));
  return state;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobState>> BuildJobState(const JobSpec& spec,
                                                        const ProviderRegistry& providers,
                                                        CommunicatorPtr world, c10::Device device) {
  return Build(spec, providers, std::move(world), device, nullptr);
}

absl::StatusOr<std::unique_ptr<JobState>> BuildJobStateToFill(const JobSpec& spec,
                                                              const ProviderRegistry& providers,
                                                              CommunicatorPtr world,
                                                              c10::Device device) {
  CommunicatorPtr unbound = MakeUnboundCommunicator("world", world->ranks(), world->rank());
  ASSIGN_OR_RETURN(std::unique_ptr<JobState> state,
                   Build(spec, providers, std::move(unbound), device, world.get()));
  RETURN_IF_ERROR(state->parallel.Rebind(std::move(world)));
  return state;
}

absl::Status JoinBuild(const JobState& state, Communicator& world) {
  return state.optimizer->JoinUnion(world);
}

void ApplySchedule(const LrSchedule& schedule, Optimizer& optimizer) {
  const std::vector<ParamGroup>& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    GroupOverrides overrides;
    overrides.max_lr = groups[i].identity.max_lr;
    overrides.min_lr = groups[i].identity.min_lr;
    overrides.wd_mult = groups[i].identity.wd_mult;
    optimizer.SetGroupLr(static_cast<int>(i), schedule.Lr(overrides),
                         schedule.WeightDecay(overrides));
  }
}

}  // namespace muster
