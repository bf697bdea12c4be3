// The job's data sets, opened by a thread of its own while this process has nothing else to do: a
// spare that waits for a rank, a new process on its way to its peers. The index of a long job takes
// seconds. Whoever comes to need the data waits for what is under way, which is there no later than
// what would be begun then.
//
// One thread uses it. Dropping it waits for nothing: its thread keeps what it works with, and ends
// by itself.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/schedule/sample_counts.h"
#include "common/spec/job_spec.h"
#include "worker/provider/provider.h"

namespace muster {

class WarmData {
 public:
  // Begins. Null where the data sets are a plugin's: its code runs in the training thread and
  // nowhere else. `build_cache`: DatasetRequest::build_cache.
  static std::unique_ptr<WarmData> Begin(const JobSpec& spec, const ProviderRegistry& providers,
                                         bool build_cache);

  // Until they are there, or could not be opened.
  void Await() const { opened_.wait(); }
  // The data sets, once; waits for them. None: they could not be opened (who opens them again is
  // told why), or they are not of `wanted` numbers of samples.
  std::optional<Datasets> Take(const SampleCounts& wanted);

 private:
  struct Opened {
    SampleCounts counts;
    Datasets datasets;
  };
  explicit WarmData(std::future<absl::StatusOr<Opened>> opened) : opened_(std::move(opened)) {}
  static absl::StatusOr<Opened> Open(const JobSpec& spec, DatasetProvider& provider,
                                     bool build_cache);

  std::future<absl::StatusOr<Opened>> opened_;
};

}  // namespace muster
