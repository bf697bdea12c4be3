// What data parallelism cuts over its ranks, of whichever form (reference 6.6 and 15): distributed
// optimizer, Megatron-FSDP's strategies, torch FSDP2. Of a spec without faults; pure.
#pragma once

#include "common/spec/job_spec.h"

namespace muster {

struct DataSharding {
  // Cut over the ranks of a shard group; each holds for those before it.
  bool optimizer = false, gradients = false, parameters = false;
  // Gathered or reduced unit by unit (transformer layers and the rest), not in buckets.
  bool by_unit = false;
  bool optimizer_over_instances = false;  // outer_dp_sharding_strategy optim
  bool keeps_units_gathered = false;      // from the forward to the backward pass
  // The spec's flags, or on where the strategy turns them on.
  bool overlap_grad_reduce = false, overlap_param_gather = false;
};

DataSharding DataShardingOf(const ParallelSpec& parallel);

}  // namespace muster
