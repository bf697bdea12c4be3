// Which samples each data-parallel rank reads, as an iterator over its microbatches; resumes at the
// consumed sample (reference 10.4). Collates one microbatch ahead on a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/batch.h"

namespace muster {

struct DataIteratorOptions {
  // "single": consumed .. size - 1 once, an incomplete tail is dropped, then OUT_OF_RANGE.
  // "cyclic": shuffled by epoch, endless.
  // "full_validation": one sample a microbatch, rank r takes r, r + dp, ..., then OUT_OF_RANGE.
  std::string dataloader_type = "single";
  int64_t micro_batch_size = 1;
  int64_t consumed_samples = 0;  // of the whole job, not of this rank
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  bool data_sharding = true;  // cyclic only
  bool prefetch = true;       // false: Next collates in the caller's thread
};

// INVALID_ARGUMENT names the option. The iterator shares the dataset.
absl::StatusOr<std::unique_ptr<DataIterator>> MakeDataIterator(
    std::shared_ptr<const Dataset> dataset, const DataIteratorOptions& options);

}  // namespace muster
