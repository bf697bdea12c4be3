// From data paths, split and sample counts to the train, valid and test samples: Megatron's
// BlendedMegatronDatasetBuilder without torch. Reads files; writes index caches.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/sample_source.h"
#include "common/dataset/split.h"

namespace muster {

struct GptDatasetsOptions {
  int64_t seq_length = 0;
  int64_t seed = 1234;
  // Either one blend, cut by `split`, or one of its own per split. All empty is an error.
  std::vector<std::string> data_path;
  std::array<std::vector<std::string>, kNumSplits> split_data_path;
  std::string split = "969, 30, 1";
  std::array<std::optional<int64_t>, kNumSplits> num_samples;  // nullopt: one epoch
  std::string cache_path;   // "": PREFIX/cache/GPTDataset_indices
  bool build_cache = true;  // false: use what is cached, build the rest in memory
  std::string tokenizer;    // its identity, part of the cache key
};

struct GptDatasets {
  // Null: weight 0, no path, or (valid and test) a share too small to hold a document.
  std::array<std::shared_ptr<const SampleSource>, kNumSplits> samples;
  // Trouble that does not matter: an index cache that could not be written or was damaged.
  std::vector<std::string> notes;
};

// NOT_FOUND or DATA_LOSS with the file; INVALID_ARGUMENT with the field; FAILED_PRECONDITION when a
// split cannot give one sample.
absl::StatusOr<GptDatasets> BuildGptSamples(const GptDatasetsOptions& options);

// The mock documents, cut by options.split; cached only with a cache_path.
absl::StatusOr<GptDatasets> BuildMockSamples(const GptDatasetsOptions& options, int64_t vocab_size);

}  // namespace muster
