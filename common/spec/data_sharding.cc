#include "common/spec/data_sharding.h"

namespace muster {

DataSharding DataShardingOf(const ParallelSpec& parallel) {
  DataSharding sharding;
  sharding.overlap_grad_reduce = parallel.overlap_grad_reduce;
  sharding.overlap_param_gather = parallel.overlap_param_gather;
  if (parallel.use_torch_fsdp2) {
    sharding.optimizer = sharding.gradients = sharding.parameters = sharding.by_unit = true;
    sharding.keeps_units_gathered = !parallel.torch_fsdp2_reshard_after_forward;
    sharding.overlap_grad_reduce = sharding.overlap_param_gather = true;
    return sharding;
  }
  if (!parallel.use_megatron_fsdp) {
    sharding.optimizer = parallel.use_distributed_optimizer;
    return sharding;
  }
  const std::string& strategy = parallel.data_parallel_sharding_strategy;
  sharding.parameters = strategy == "optim_grads_params";
  sharding.gradients = sharding.parameters || strategy == "optim_grads";
  // The flag use_distributed_optimizer is implied, or without meaning (no_shard).
  sharding.optimizer = sharding.gradients || strategy == "optim";
  sharding.by_unit = sharding.gradients;
  sharding.optimizer_over_instances = parallel.outer_dp_sharding_strategy == "optim";
  sharding.overlap_grad_reduce |= sharding.gradients;
  sharding.overlap_param_gather |= sharding.parameters;
  return sharding;
}

}  // namespace muster
