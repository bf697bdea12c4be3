// Does this machine have the files that a spec names? The command line asks before it submits a
// job to this machine, each agent before it starts a trainer. Reads the file system, changes
// nothing. Thread-safe.
#pragma once

#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

// Datasets (.idx and .bin readable), tokenizer and plugin (readable), checkpoints to start from
// (folders that are there), the folder to save to (there and writable, or can be made). Empty:
// all well.
std::vector<SpecProblem> CheckSpecFiles(const JobSpec& spec);

}  // namespace muster
