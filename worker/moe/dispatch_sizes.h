// What the dispatchers share: places and numbers of rows.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/moe/dispatch_plan.h"
#include "worker/moe/moe_config.h"
#include "worker/ops/parallel_groups.h"

namespace muster {

ExpertGrid ExpertGridOf(const MoeConfig& config, const ExpertParallel& groups);

// With padding to capacity: rows that each expert gets from each rank of `tokens` tokens. All of
// them where the capacity is above that (reference 14.4).
int64_t PaddedRows(const MoeConfig& config, int64_t tokens);

int64_t Total(const std::vector<int64_t>& rows);

// An int64 tensor's values. On a GPU the host waits for them.
std::vector<int64_t> ToHost(const at::Tensor& counts);

}  // namespace muster
