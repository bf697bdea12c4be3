// The layout string of parallel.pipeline_model_parallel_layout (reference 2.2): E embedding, t
// layer, L loss; '|' separates stages, x*k repeats a letter, (..)*k a group, ',' means nothing.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// The letters of each stage, repetitions written out; stage k belongs to pipeline rank k mod pp.
absl::StatusOr<std::vector<std::string>> ExpandPipelineLayout(absl::string_view layout);

// What is wrong with a layout for so many layers and pipeline ranks, or "".
std::string PipelineLayoutProblem(absl::string_view layout, int64_t num_layers, int64_t pp);

}  // namespace muster
