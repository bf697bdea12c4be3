#include "common/schedule/expert_rows.h"

#include <algorithm>
#include <cmath>

namespace muster {

ExpertRows ExpertRowsOf(const JobSpec& spec) {
  const ModelSpec& m = spec.model;
  const ParallelSpec& p = spec.parallel;
  ExpertRows rows;
  if (!m.num_experts.has_value()) return rows;
  const double tp = static_cast<double>(p.tensor_model_parallel_size);
  const double experts = static_cast<double>(*m.num_experts);
  rows.ep = static_cast<double>(p.expert_model_parallel_size);
  rows.etp =
      static_cast<double>(p.expert_tensor_parallel_size.value_or(p.tensor_model_parallel_size));
  rows.ranks = rows.ep * rows.etp;
  rows.local_experts = experts / rows.ep;
  rows.tokens = static_cast<double>(spec.training.micro_batch_size * m.seq_length) /
                static_cast<double>(p.context_parallel_size) / (p.sequence_parallel ? tp : 1);
  double of_expert = rows.tokens * static_cast<double>(m.moe_router_topk) / experts;
  if (m.moe_expert_capacity_factor.has_value()) {  // reference 14.4
    const double capacity = std::ceil(of_expert * *m.moe_expert_capacity_factor);
    if (m.moe_pad_expert_input_to_capacity) {
      of_expert = std::min(capacity, rows.tokens);
    } else {
      of_expert = std::min(capacity, of_expert);
    }
  }
  rows.sent = of_expert * experts;
  rows.received = of_expert * rows.local_experts * rows.ranks;
  return rows;
}

}  // namespace muster
