// Forward passes over a validation or test set (reference 12.4). Collective over the job's ranks.
// One thread.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/train/job_state.h"

namespace muster {

// At most `eval_iters` iterations of `num_microbatches` each, fewer where the data ends at an
// iteration's start (full validation: ranks may have different numbers of samples); token-weighted
// means over all of them and over dp_cp. The model's training flag is restored. Consumes from
// `data`; the caller counts the samples.
absl::StatusOr<std::map<std::string, double>> Evaluate(JobState& state, DataIterator& data,
                                                       int64_t eval_iters,
                                                       int64_t num_microbatches);

// PPL as it is reported: exp(min(20, loss)).
double Perplexity(double loss);

}  // namespace muster
