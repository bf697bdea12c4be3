// A spec's settings as the options of the MoE layers.
#pragma once

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "worker/moe/moe_config.h"

namespace muster {

// Of a spec without faults; num_experts 0 when it has dense layers only.
MoeConfig MoeConfigOf(const JobSpec& spec, const ResolvedSpec& sizes);

}  // namespace muster
