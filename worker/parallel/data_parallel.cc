#include "worker/parallel/data_parallel.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace muster {

absl::Status DataParallel::CheckBucketNorms() const {
  for (const LocalNorm& entry : LocalNorms()) {
    if (std::isfinite(entry.norm)) continue;
    return absl::InternalError(absl::StrCat("found ", std::isnan(entry.norm) ? "NaN" : "Inf",
                                            " in the local gradient norm of ", entry.where,
                                            ", before the data-parallel reduction"));
  }
  return absl::OkStatus();
}

}  // namespace muster
