#include "common/recovery/elastic_size.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/spec/spec_json.h"
#include "common/spec/validate.h"

namespace muster {
namespace {

// The default depends on dp, so it has to be taken before dp changes.
int64_t GlobalBatchOf(const JobSpec& spec) {
  const int64_t dp = spec.resources.world_size / RanksOfReplica(spec);
  return spec.training.global_batch_size.value_or(spec.training.micro_batch_size * dp);
}

}  // namespace

int64_t RanksOfReplica(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  return parallel.tensor_model_parallel_size * parallel.context_parallel_size *
         parallel.pipeline_model_parallel_size;
}

int64_t LargestDataParallelSize(const JobSpec& spec, int64_t replicas) {
  JobSpec resized = spec;
  resized.training.global_batch_size = GlobalBatchOf(spec);
  for (int64_t dp = replicas; dp > 0; --dp) {
    // Most are refused by this one, which is cheap.
    if (*resized.training.global_batch_size % (spec.training.micro_batch_size * dp) != 0) continue;
    resized.resources.world_size = dp * RanksOfReplica(spec);
    if (Validate(resized).empty()) return dp;
  }
  return 0;
}

absl::StatusOr<std::string> SpecWithReplicas(absl::string_view spec_json, int64_t dp) {
  const ParsedSpec before = ParseJobSpec(spec_json);
  if (!before.problems.empty())
    return absl::InvalidArgumentError(before.problems.front().ToString());
  ASSIGN_OR_RETURN(
      std::string resized,
      ApplySetOptions(spec_json,
                      {absl::StrCat("resources.world_size=", dp * RanksOfReplica(before.spec)),
                       absl::StrCat("training.global_batch_size=", GlobalBatchOf(before.spec))}));
  const ParsedSpec after = ParseJobSpec(resized);
  if (!after.problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("with ", dp, " replicas: ", after.problems.front().ToString()));
  }
  return resized;
}

}  // namespace muster
