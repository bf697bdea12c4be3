// Forward passes over a validation or test set (reference 12.4). Collective over the job's ranks.
// One thread.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/train/job_data.h"
#include "worker/train/job_state.h"

namespace muster {

// Token-weighted means over the pass's iterations and over dp_cp; on the last stage only, the
// others get none. The model's training flag is restored. Consumes pass.data; the caller counts the
// samples, and has turned the forward pre-hooks off.
absl::StatusOr<std::map<std::string, double>> Evaluate(JobState& state,
                                                       const JobData::EvaluationPass& pass);

// PPL as it is reported: exp(min(20, loss)).
double Perplexity(double loss);

}  // namespace muster
