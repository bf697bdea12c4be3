// Rules on data parallelism: overlap, buckets, the distributed optimizer (reference 6) and the
// fully sharded forms (reference 15).
#include "absl/strings/str_cat.h"
#include "common/spec/data_sharding.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

void CheckOverlapAndBuckets(const JobSpec& spec, const DataSharding& sharding, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  if (parallel.overlap_param_gather && !sharding.overlap_grad_reduce) {
    report->Add("parallel.overlap_param_gather", "needs parallel.overlap_grad_reduce");
  }
  if (parallel.overlap_param_gather && !sharding.optimizer && !parallel.use_megatron_fsdp &&
      spec.optimizer.optimizer != "dist_muon") {
    report->Add("parallel.overlap_param_gather",
                "needs parallel.use_distributed_optimizer, parallel.use_megatron_fsdp or "
                "optimizer.optimizer dist_muon");
  }
  if (parallel.pad_buckets_for_high_nccl_busbw && (!sharding.optimizer || sharding.by_unit)) {
    report->Add("parallel.pad_buckets_for_high_nccl_busbw",
                "needs parallel.use_distributed_optimizer");
  }
  if (parallel.ddp_bucket_size && parallel.ddp_num_buckets) {
    report->Add("parallel.ddp_num_buckets", "excludes parallel.ddp_bucket_size");
  }
  if (parallel.ddp_average_in_collective && spec.training.calculate_per_token_loss) {
    report->Add("parallel.ddp_average_in_collective", "excludes training.calculate_per_token_loss");
  }
}

// Replicas of what is sharded.
void CheckInstances(const JobSpec& spec, const DataSharding& sharding, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const char* const field = "parallel.num_distributed_optimizer_instances";
  const int64_t instances = parallel.num_distributed_optimizer_instances;
  if (instances == 1 || !report->Good({field, "parallel.data_parallel_sharding_strategy"})) return;
  if (!sharding.optimizer || parallel.use_torch_fsdp2) {
    report->Add(field,
                "needs parallel.use_distributed_optimizer, or parallel.use_megatron_fsdp with a "
                "strategy that shards");
    return;
  }
  const int64_t dp = DataParallelSize(spec, *report);
  const int64_t edp = ExpertDataParallelSize(spec, *report);
  if (dp == 0 || edp == 0) return;
  const int64_t dense = dp * parallel.context_parallel_size;
  if (dense % instances != 0 || edp % instances != 0) {
    report->Add(field, absl::StrCat("must divide data x context parallel size = ", dense,
                                    " and expert data parallel size = ", edp));
  }
}

void CheckMegatronFsdp(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const char* const strategy_field = "parallel.data_parallel_sharding_strategy";
  const char* const outer_field = "parallel.outer_dp_sharding_strategy";
  if (!report->Good({strategy_field})) return;
  const std::string& strategy = parallel.data_parallel_sharding_strategy;
  const bool is_outer_sharded =
      report->Good({outer_field}) && parallel.outer_dp_sharding_strategy != "no_shard";
  if (!parallel.use_megatron_fsdp) {
    if (strategy != "no_shard") report->Add(strategy_field, "needs parallel.use_megatron_fsdp");
    if (is_outer_sharded) report->Add(outer_field, "needs parallel.use_megatron_fsdp");
    return;
  }
  if (is_outer_sharded && strategy != "optim_grads_params") {
    report->Add(outer_field, absl::StrCat("needs ", strategy_field, "=\"optim_grads_params\""));
  }
  if (report->Good({"optimizer.optimizer"}) && UsesMuon(spec.optimizer)) {
    report->Add("parallel.use_megatron_fsdp", "runs with optimizer adam or sgd only");
  }
}

void CheckTorchFsdp2(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  if (!parallel.use_torch_fsdp2) {
    if (!parallel.torch_fsdp2_reshard_after_forward) {
      report->Add("parallel.torch_fsdp2_reshard_after_forward", "needs parallel.use_torch_fsdp2");
    }
    return;
  }
  const struct {
    bool broken;
    const char* message;
  } rules[] = {
      {parallel.use_megatron_fsdp, "excludes parallel.use_megatron_fsdp"},
      {parallel.use_distributed_optimizer, "excludes parallel.use_distributed_optimizer"},
      {parallel.pipeline_model_parallel_size > 1, "needs pipeline_model_parallel_size=1"},
      {parallel.expert_model_parallel_size > 1, "needs expert_model_parallel_size=1"},
      {!spec.model.untie_embeddings_and_output_weights,
       "needs model.untie_embeddings_and_output_weights"},
      {spec.training.fp16, "excludes training.fp16"},
      {UsesMuon(spec.optimizer), "runs with optimizer adam or sgd only"},
  };
  for (const auto& rule : rules) {
    if (rule.broken) report->Add("parallel.use_torch_fsdp2", rule.message);
  }
}

}  // namespace

void CheckSharding(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const DataSharding sharding = DataShardingOf(parallel);
  CheckOverlapAndBuckets(spec, sharding, report);
  CheckInstances(spec, sharding, report);
  CheckMegatronFsdp(spec, report);
  CheckTorchFsdp2(spec, report);
  const char* const check_field = "training.check_weight_hash_across_dp_replicas_interval";
  if (sharding.parameters && report->Good({check_field}) &&
      spec.training.check_weight_hash_across_dp_replicas_interval.has_value()) {
    report->Add(check_field,
                absl::StrCat("has no replicas to compare with ",
                             parallel.use_torch_fsdp2
                                 ? "parallel.use_torch_fsdp2"
                                 : "data_parallel_sharding_strategy optim_grads_params"));
  }
}

}  // namespace muster
