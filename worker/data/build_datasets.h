// The train, valid and test datasets that a spec's data section asks for. worker/provider wraps
// these two functions as the dataset providers "gpt" and "mock".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "worker/data/batch.h"

namespace muster {

struct BuildDatasetsOptions {
  const JobSpec& spec;
  const ResolvedSpec& sizes;
  // Samples wanted (reference 10.5); nullopt: one epoch.
  std::optional<int64_t> train_samples, valid_samples, test_samples;
  // Rank 0: true, builds and writes the index caches. The others: false, after a barrier; they map
  // the cache, and build in memory what they do not find (the indices are a function of the seed).
  bool build_cache = true;
};

struct BuiltDatasets {
  std::shared_ptr<const Dataset> train, valid, test;  // null: no such split
};

// Indexed files from data.data_path (with data.split) or data.{train,valid,test}_data_path; one
// prefix, several, or weight-prefix pairs. No path at all: mock data. NOT_FOUND, DATA_LOSS and
// INVALID_ARGUMENT name the file or field.
absl::StatusOr<BuiltDatasets> BuildGptDatasets(const BuildDatasetsOptions& options);

// Megatron's mock documents (100,000, fixed lengths), split "1,1,1" unless the spec says otherwise.
absl::StatusOr<BuiltDatasets> BuildMockDatasets(const BuildDatasetsOptions& options);

}  // namespace muster
