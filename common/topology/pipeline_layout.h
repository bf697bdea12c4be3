// The layout string of parallel.pipeline_model_parallel_layout (reference 2.2): E embedding, t
// layer, m multi-token prediction layer, L loss; '|' separates stages, x*k repeats a letter, (..)*k
// a group, ',' means nothing. Stage k is chunk k / pp of pipeline rank k mod pp. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/topology/layer_assignment.h"

namespace muster {

// The letters of each stage, repetitions written out. INVALID_ARGUMENT says what is wrong, without
// naming the setting: "has a '(' that is not closed".
absl::StatusOr<std::vector<std::string>> ExpandPipelineLayout(absl::string_view layout);

// What a layout has to hold, and the pipeline ranks that share its stages.
struct LayoutNeeds {
  int64_t num_layers = 0, mtp_num_layers = 0;
  int pp = 1;
};
// Errors as above.
absl::StatusOr<LayerTable> AssignByLayout(absl::string_view layout, const LayoutNeeds& needs);

}  // namespace muster
