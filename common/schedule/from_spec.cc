#include "common/schedule/from_spec.h"

#include <algorithm>
#include <limits>

#include "common/base/status.h"
#include "common/spec/data_sharding.h"
#include "common/spec/per_layer.h"

namespace muster {

TopologySpec TopologyOf(const JobSpec& spec) {
  const ParallelSpec& p = spec.parallel;
  TopologySpec topology;
  topology.world_size = static_cast<int>(spec.resources.world_size);
  topology.tp = static_cast<int>(p.tensor_model_parallel_size);
  topology.cp = static_cast<int>(p.context_parallel_size);
  topology.pp = static_cast<int>(p.pipeline_model_parallel_size);
  topology.ep = static_cast<int>(p.expert_model_parallel_size);
  topology.etp = static_cast<int>(p.expert_tensor_parallel_size.value_or(0));
  const int64_t virtual_pp = p.virtual_pipeline_model_parallel_size.value_or(1);
  topology.virtual_pp = virtual_pp > 1 ? static_cast<int>(virtual_pp) : 0;  // 1 means none
  topology.num_distributed_optimizer_instances =
      static_cast<int>(p.num_distributed_optimizer_instances);
  for (const int64_t size : p.hierarchical_context_parallel_sizes) {
    topology.hierarchical_cp.push_back(static_cast<int>(size));
  }
  topology.order = p.order;
  return topology;
}

absl::StatusOr<LayerSplit> LayerSplitOf(const JobSpec& spec) {
  const ParallelSpec& p = spec.parallel;
  LayerSplit split;
  split.num_layers = spec.model.num_layers;
  split.pp = static_cast<int>(p.pipeline_model_parallel_size);
  split.first_stage_layers = p.decoder_first_pipeline_num_layers;
  split.last_stage_layers = p.decoder_last_pipeline_num_layers;
  split.account_for_embedding = p.account_for_embedding_in_pipeline_split;
  split.account_for_loss = p.account_for_loss_in_pipeline_split;
  split.layout = p.pipeline_model_parallel_layout;
  if (split.layout.has_value()) {
    ASSIGN_OR_RETURN(const LayerTable table, AssignLayers(split));
    split.virtual_pp = static_cast<int>(table.front().size());
  } else if (p.num_layers_per_virtual_pipeline_stage.has_value()) {
    ASSIGN_OR_RETURN(split.virtual_pp, VirtualStagesFromLayersPerStage(
                                           split, *p.num_layers_per_virtual_pipeline_stage));
  } else {
    split.virtual_pp = static_cast<int>(p.virtual_pipeline_model_parallel_size.value_or(1));
  }
  return split;
}

MicrobatchOptions MicrobatchOptionsOf(const JobSpec& spec, const ResolvedSpec& resolved) {
  MicrobatchOptions options;
  options.global_batch_size = resolved.global_batch_size;
  options.micro_batch_size = spec.training.micro_batch_size;
  options.data_parallel_size = resolved.data_parallel_size;
  options.decrease_batch_size_if_needed = spec.training.decrease_batch_size_if_needed;
  const auto& rampup = spec.training.rampup_batch_size;
  if (rampup.has_value() && rampup->size() == 3) {
    options.rampup = BatchRampup{(*rampup)[0], (*rampup)[1], (*rampup)[2]};
  }
  return options;
}

ScheduleOptions ScheduleOptionsOf(const JobSpec& spec, int virtual_pp, int64_t num_microbatches) {
  const ParallelSpec& p = spec.parallel;
  ScheduleOptions options;
  options.pp = static_cast<int>(p.pipeline_model_parallel_size);
  options.virtual_pp = virtual_pp;
  options.num_microbatches =
      static_cast<int>(std::min<int64_t>(num_microbatches, std::numeric_limits<int>::max()));
  options.microbatch_group_size =
      static_cast<int>(p.microbatch_group_size_per_virtual_pipeline_stage.value_or(0));
  // Without virtual stages Megatron turns these two off; without stages nothing has to be aligned.
  options.overlap_p2p_comm = virtual_pp > 1 && p.overlap_p2p_comm;
  options.overlap_p2p_comm_warmup_flush =
      options.overlap_p2p_comm && p.overlap_p2p_comm_warmup_flush;
  // What travels unit by unit does so at the points of its units, not at the schedule's.
  const DataSharding sharding = DataShardingOf(p);
  options.has_param_sync_func =
      virtual_pp > 1 && sharding.overlap_param_gather && !sharding.by_unit && p.align_param_gather;
  options.has_grad_sync_func =
      options.pp > 1 && sharding.overlap_grad_reduce && !sharding.by_unit && p.align_grad_reduce;
  const auto& partial = spec.training.num_microbatches_with_partial_activation_checkpoints;
  if (partial.has_value() && options.pp > 1) {
    options.num_microbatches_with_partial_activation_checkpoints =
        static_cast<int>(std::min<int64_t>(*partial, std::numeric_limits<int>::max()));
  }
  return options;
}

ScheduleOptions ForwardOnlyScheduleOptionsOf(const JobSpec& spec, int virtual_pp,
                                             int64_t num_microbatches) {
  ScheduleOptions options = ScheduleOptionsOf(spec, virtual_pp, num_microbatches);
  options.forward_only = true;
  options.has_grad_sync_func = options.has_param_sync_func = false;
  options.num_microbatches_with_partial_activation_checkpoints.reset();
  return options;
}

absl::StatusOr<LrScheduleOptions> LrScheduleOptionsOf(const JobSpec& spec,
                                                      const ResolvedSpec& resolved) {
  const ScheduleSpec& s = spec.schedule;
  const bool counts_samples = spec.training.train_samples.has_value();
  const int64_t batch = resolved.global_batch_size;
  LrScheduleOptions options;
  options.init_lr = s.lr_warmup_init;
  options.max_lr = spec.optimizer.lr;
  options.min_lr = s.min_lr;
  int64_t warmup = 0;
  if (counts_samples) {
    options.lr_decay_steps = s.lr_decay_samples.value_or(resolved.train_samples);
    options.wsd_decay_steps = s.lr_wsd_decay_samples;
    options.wd_incr_steps = resolved.train_samples;
    warmup = s.lr_warmup_samples;
  } else {
    options.lr_decay_steps = s.lr_decay_iters.value_or(resolved.train_iters) * batch;
    if (s.lr_wsd_decay_iters.has_value()) options.wsd_decay_steps = *s.lr_wsd_decay_iters * batch;
    options.wd_incr_steps = resolved.train_iters * batch;
    warmup = s.lr_warmup_iters * batch;
  }
  options.lr_warmup_steps =
      s.lr_warmup_fraction.has_value()
          ? *s.lr_warmup_fraction * static_cast<double>(options.lr_decay_steps)
          : static_cast<double>(warmup);
  ASSIGN_OR_RETURN(options.lr_decay_style, ParseLrDecayStyle(s.lr_decay_style));
  ASSIGN_OR_RETURN(options.wsd_decay_style, ParseWsdDecayStyle(s.lr_wsd_decay_style));
  ASSIGN_OR_RETURN(options.wd_incr_style, ParseWeightDecayStyle(s.weight_decay_incr_style));
  options.start_wd = s.start_weight_decay.value_or(spec.optimizer.weight_decay);
  options.end_wd = s.end_weight_decay.value_or(spec.optimizer.weight_decay);
  options.override_checkpoint = s.override_opt_param_scheduler;
  options.use_checkpoint = s.use_checkpoint_opt_param_scheduler;
  return options;
}

LossScalerOptions LossScalerOptionsOf(const JobSpec& spec) {
  const TrainingSpec& t = spec.training;
  LossScalerOptions options;
  if (t.loss_scale.has_value()) {
    options.initial_scale = *t.loss_scale;
    return options;
  }
  if (!t.fp16) return options;  // a scale of 1
  options.dynamic = true;
  options.initial_scale = t.initial_loss_scale;
  options.min_scale = t.min_loss_scale;
  options.growth_interval = t.loss_scale_window;
  options.hysteresis = t.hysteresis;
  return options;
}

FlopsModel FlopsModelOf(const JobSpec& spec, const ResolvedSpec& resolved) {
  const ModelSpec& m = spec.model;
  FlopsModel model;
  model.num_layers = m.num_layers;
  model.hidden_size = m.hidden_size;
  model.ffn_hidden_size = resolved.ffn_hidden_size;
  model.num_attention_heads = m.num_attention_heads;
  model.num_query_groups = resolved.num_query_groups;
  model.kv_channels = resolved.kv_channels;
  model.padded_vocab_size = resolved.padded_vocab_size;
  model.swiglu = m.swiglu;
  if (m.num_experts.has_value()) {
    model.moe_layers = ExpertLayers(m);
    model.moe_router_topk = m.moe_router_topk;
    model.moe_ffn_hidden_size = m.moe_ffn_hidden_size.value_or(resolved.ffn_hidden_size);
    model.moe_shared_expert_intermediate_size = m.moe_shared_expert_intermediate_size.value_or(0);
  }
  return model;
}

SampleCountOptions SampleCountOptionsOf(const JobSpec& spec, const ResolvedSpec& resolved) {
  SampleCountOptions options;
  options.global_batch_size = resolved.global_batch_size;
  options.train_iters = resolved.train_iters;
  options.train_samples = spec.training.train_samples;
  options.eval_interval = spec.evaluation.eval_interval;
  options.eval_iters = spec.evaluation.eval_iters;
  options.eval_global_batch_size = spec.evaluation.eval_global_batch_size;
  options.start_eval_at_iter = spec.evaluation.start_eval_at_iter.value_or(0);
  options.at_start = spec.evaluation.at_start;
  options.skip_train = spec.training.skip_train;
  options.full_validation = spec.data.full_validation;
  return options;
}

EvalScheduleOptions EvalScheduleOptionsOf(const JobSpec& spec) {
  EvalScheduleOptions options;
  options.eval_interval = spec.evaluation.eval_interval;
  options.eval_iters = spec.evaluation.eval_iters;
  options.at_start = spec.evaluation.at_start;
  options.start_eval_at_iter = spec.evaluation.start_eval_at_iter.value_or(0);
  return options;
}

ExitOptions ExitOptionsOf(const JobSpec& spec) {
  ExitOptions options;
  options.can_save = spec.checkpoint.save.has_value();
  options.save_interval = spec.checkpoint.save_interval;
  options.exit_interval = spec.training.exit_interval;
  options.exit_duration_in_mins = spec.training.exit_duration_in_mins;
  return options;
}

}  // namespace muster
