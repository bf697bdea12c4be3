// Features that a spec can ask for and that this version's trainer does not have yet. They are
// refused at submit; plan and topology work on them. Pure.
#pragma once

#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

// Empty when the trainer can run the (good) spec.
std::vector<SpecProblem> UnsupportedFeatures(const JobSpec& spec);

}  // namespace muster
