// The job's data sets and iterators on this rank (reference 10.5, 12.4). One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/provider/provider.h"
#include "worker/train/job_state.h"
#include "worker/train/warm_data.h"

namespace muster {

// By chunk of this rank: each reads the same microbatches through an iterator of its own (a later
// virtual stage comes to a microbatch later). Equal on all tp and pp ranks of a data-parallel
// coordinate, but that a stage which looks at no data gets empty batches; the cp ranks share its
// sequences, each has its tokens of them (worker/data/context_slices.h).
using DataIterators = std::vector<std::unique_ptr<DataIterator>>;

class JobData {
 public:
  // Rank 0 builds the index caches, then the others map them. Collective: a failure on any rank is
  // every rank's error. `kept`: data of an attempt before, which this rank goes on with. `warm`:
  // else what was begun already; may be null.
  static absl::StatusOr<JobData> Build(const JobState& state, const ProviderRegistry& providers,
                                       std::optional<JobData> kept = std::nullopt,
                                       std::unique_ptr<WarmData> warm = nullptr);

  // From the consumed samples on.
  absl::StatusOr<DataIterators> TrainIterators(const JobState& state) const;

  // One evaluation's data: "valid" from the consumed position (from the start again where too
  // little is left), "test" from the start. NOT_FOUND: there is no such data.
  struct EvaluationPass {
    DataIterators data;
    int64_t eval_iters = 0;  // of this data-parallel coordinate (full validation: they may differ)
    int64_t num_microbatches = 1;
    int64_t micro_batch_size = 1;
    int64_t samples = 0;  // that it consumes, over all ranks
  };
  absl::StatusOr<EvaluationPass> Evaluation(const JobState& state, const std::string& split) const;

  bool has_train() const { return datasets_.train != nullptr; }
  bool has_valid() const { return datasets_.valid != nullptr; }
  bool has_test() const { return datasets_.test != nullptr; }

 private:
  explicit JobData(Datasets datasets) : datasets_(std::move(datasets)) {}
  Datasets datasets_;
};

}  // namespace muster
