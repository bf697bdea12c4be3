#include "coordinator/core/job_topology.h"

namespace muster {

absl::StatusOr<RankTopology> TopologyOf(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  TopologySpec topology;
  topology.world_size = static_cast<int>(spec.resources.world_size);
  topology.tp = static_cast<int>(parallel.tensor_model_parallel_size);
  topology.cp = static_cast<int>(parallel.context_parallel_size);
  topology.pp = static_cast<int>(parallel.pipeline_model_parallel_size);
  topology.ep = static_cast<int>(parallel.expert_model_parallel_size);
  topology.etp = static_cast<int>(parallel.expert_tensor_parallel_size.value_or(0));
  topology.virtual_pp = static_cast<int>(parallel.virtual_pipeline_model_parallel_size.value_or(0));
  topology.num_distributed_optimizer_instances =
      static_cast<int>(parallel.num_distributed_optimizer_instances);
  topology.order = parallel.order;
  return RankTopology::Create(topology);
}

}  // namespace muster
