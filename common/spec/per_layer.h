// Settings that are given once for all layers or layer by layer, spread over the layers. Of a spec
// without faults; pure.
#pragma once

#include <string>
#include <vector>

#include "common/spec/job_spec.h"

namespace muster {

// Which layers have experts (moe_layer_freq; none without num_experts).
std::vector<bool> ExpertLayers(const ModelSpec& model);

// How attention of each layer meets the other context parallel ranks.
std::vector<std::string> CpCommTypes(const JobSpec& spec);

}  // namespace muster
