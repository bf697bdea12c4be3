// The rules across fields (reference: Megatron's validate_args, the topology's, schedules' and
// optimizers' own checks), without the file system. Every broken rule is reported, not only the
// first. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

// `faulty`: fields ("section.field") whose value is already reported; rules that read them are
// skipped.
std::vector<SpecProblem> Validate(const JobSpec& spec, const std::set<std::string>& faulty = {});

}  // namespace muster
