#include "common/dataset/gpt_datasets.h"

#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/dataset/gpt_index_cache.h"
#include "common/dataset/indexed_dataset.h"
#include "common/dataset/mock_documents.h"

namespace muster {
namespace {

using SamplesPtr = std::shared_ptr<const SampleSource>;

class Builder {
 public:
  explicit Builder(const GptDatasetsOptions& options) : options_(options) {}

  // Samples of sequences [range) of one source; null for an empty valid or test range.
  absl::StatusOr<SamplesPtr> BuildOne(std::shared_ptr<const TokenSource> source,
                                      const std::string& name, const std::string& cache_folder,
                                      Split split, std::pair<int64_t, int64_t> range,
                                      std::optional<int64_t> num_samples) {
    if (range.first >= range.second) {
      if (split != Split::kTrain) return SamplesPtr();
      return absl::FailedPreconditionError(absl::StrCat(
          name, ": its ", source->num_sequences(),
          " documents leave none for training; change data.split=\"", options_.split, "\""));
    }
    const GptIndexOptions index_options{.first_sequence = range.first,
                                        .end_sequence = range.second,
                                        .seq_length = options_.seq_length,
                                        .num_samples = num_samples,
                                        .seed = options_.seed};
    GptIndexCacheKey key{.folder = cache_folder, .split = std::string(SplitName(split))};
    key.description = Describe(*source, name, index_options, split);
    absl::StatusOr<GptIndex> index = absl::NotFoundError("no cache folder");
    if (!cache_folder.empty()) {
      index = LoadGptIndex(key);
      if (!index.ok() && !absl::IsNotFound(index.status())) {
        notes_.push_back(std::string(index.status().message()));
      }
    }
    if (!index.ok()) {
      index = BuildGptIndex(*source, index_options);
      if (!index.ok()) {
        return Annotate(index.status(), absl::StrCat(name, ", ", SplitName(split), " split"));
      }
      if (!cache_folder.empty() && options_.build_cache) {
        const absl::Status saved = SaveGptIndex(FileOps::Real(), key, *index);
        if (!saved.ok()) notes_.push_back(absl::StrCat("index not cached: ", saved.message()));
      }
    }
    return SamplesPtr(
        std::make_shared<GptSamples>(std::move(source), *std::move(index), options_.seq_length));
  }

  absl::StatusOr<SamplesPtr> BuildPrefix(const std::string& prefix, Split split,
                                         std::pair<double, double> bounds,
                                         std::optional<int64_t> num_samples) {
    std::shared_ptr<const IndexedDataset>& file = files_[prefix];
    if (file == nullptr) {
      ASSIGN_OR_RETURN(file, IndexedDataset::Open(prefix));
    }
    const std::string cache = options_.cache_path.empty()
                                  ? absl::StrCat(prefix, "/cache/GPTDataset_indices")
                                  : options_.cache_path;
    return BuildOne(file, prefix, cache, split, SplitRange(bounds, file->num_sequences()),
                    num_samples);
  }

  // One split of a blend. `lone_weight_counts`: a single weighted prefix is still a blend (it is
  // with data_path, not with per-split paths).
  absl::StatusOr<SamplesPtr> BuildBlend(const Blend& blend, Split split,
                                        std::pair<double, double> bounds, bool lone_weight_counts) {
    const std::optional<int64_t> wanted = options_.num_samples[static_cast<size_t>(split)];
    if (blend.prefixes.size() == 1 && !(blend.weights.has_value() && lone_weight_counts)) {
      return BuildPrefix(blend.prefixes[0], split, bounds, wanted);
    }
    if (blend.weights.has_value() && !wanted.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ", SplitName(split),
                       " blend has weights, which need a number of samples; leave the weights out ",
                       "to read every sample once"));
    }
    std::vector<SamplesPtr> parts;
    std::vector<double> lengths;
    for (size_t d = 0; d < blend.prefixes.size(); ++d) {
      const std::optional<int64_t> request =
          blend.weights.has_value()
              ? std::optional<int64_t>(BlendRequest(*wanted, (*blend.weights)[d]))
              : std::nullopt;
      ASSIGN_OR_RETURN(SamplesPtr part, BuildPrefix(blend.prefixes[d], split, bounds, request));
      if (part == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat(blend.prefixes[d], ": too few documents for the ", SplitName(split),
                         " share of data.split=\"", options_.split, "\""));
      }
      lengths.push_back(static_cast<double>(part->size()));
      parts.push_back(std::move(part));
    }
    ASSIGN_OR_RETURN(BlendIndex index, IndexOfBlend(blend, wanted, lengths));
    return BlendedSamples::Create(std::move(parts), std::move(index));
  }

  std::vector<std::string> TakeNotes() { return std::move(notes_); }

 private:
  static absl::StatusOr<BlendIndex> IndexOfBlend(const Blend& blend, std::optional<int64_t> wanted,
                                                 const std::vector<double>& lengths) {
    if (blend.weights.has_value()) {
      int64_t size = 0;
      for (const double weight : *blend.weights) size += BlendShare(*wanted, weight);
      return GreedyBlend(*blend.weights, size);
    }
    const std::vector<int64_t> sizes(lengths.begin(), lengths.end());
    if (!wanted.has_value()) return ExhaustiveBlend(sizes);
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    return GreedyBlend(lengths, std::min(*wanted, total));
  }

  // Everything that the indices are a function of. Keys are sorted, so the text is unique.
  std::string Describe(const TokenSource& source, const std::string& name,
                       const GptIndexOptions& index, Split split) const {
    int64_t tokens = 0;
    for (int64_t s = index.first_sequence; s < index.end_sequence; ++s) {
      tokens += source.sequence_length(s);
    }
    nlohmann::json description = {
        {"class", "GPTDataset"},
        {"dataset_path", name},
        {"index_split", SplitName(split)},
        {"num_samples", nullptr},
        {"random_seed", index.seed},
        {"sequence_length", index.seq_length},
        {"sequences", {index.first_sequence, index.end_sequence}},
        {"tokens", tokens},
        {"tokenizer", options_.tokenizer},
    };
    if (index.num_samples.has_value()) description["num_samples"] = *index.num_samples;
    return description.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  const GptDatasetsOptions& options_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> files_;
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<GptDatasets> BuildGptSamples(const GptDatasetsOptions& options) {
  bool per_split = false;
  for (const auto& paths : options.split_data_path) per_split = per_split || !paths.empty();
  if (per_split && !options.data_path.empty()) {
    return absl::InvalidArgumentError(
        "data.data_path and data.train_data_path, valid_data_path or test_data_path exclude each "
        "other: give one or the other");
  }
  if (!per_split && options.data_path.empty()) {
    return absl::InvalidArgumentError("data.data_path is empty: name at least one prefix");
  }
  GptDatasets datasets;
  Builder builder(options);
  if (per_split) {
    for (size_t s = 0; s < kNumSplits; ++s) {
      if (options.split_data_path[s].empty()) continue;
      ASSIGN_OR_RETURN(const Blend blend, ParseBlendList(options.split_data_path[s]));
      ASSIGN_OR_RETURN(datasets.samples[s],
                       builder.BuildBlend(blend, static_cast<Split>(s), {0.0, 1.0}, false));
    }
  } else {
    ASSIGN_OR_RETURN(const Blend blend, ParseBlendList(options.data_path));
    ASSIGN_OR_RETURN(const SplitBounds bounds, ParseSplitBounds(options.split));
    for (size_t s = 0; s < kNumSplits; ++s) {
      if (!bounds[s].has_value()) continue;
      ASSIGN_OR_RETURN(datasets.samples[s],
                       builder.BuildBlend(blend, static_cast<Split>(s), *bounds[s], true));
    }
  }
  datasets.notes = builder.TakeNotes();
  return datasets;
}

absl::StatusOr<GptDatasets> BuildMockSamples(const GptDatasetsOptions& options,
                                             int64_t vocab_size) {
  if (vocab_size < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.vocab_size=", vocab_size, ": mock data needs at least 2 tokens"));
  }
  ASSIGN_OR_RETURN(const SplitBounds bounds, ParseSplitBounds(options.split));
  const auto documents = std::make_shared<const MockDocuments>(vocab_size);
  GptDatasets datasets;
  Builder builder(options);
  for (size_t s = 0; s < kNumSplits; ++s) {
    if (!bounds[s].has_value()) continue;
    ASSIGN_OR_RETURN(datasets.samples[s],
                     builder.BuildOne(documents, "mock", options.cache_path, static_cast<Split>(s),
                                      SplitRange(*bounds[s], documents->num_sequences()),
                                      options.num_samples[s]));
  }
  datasets.notes = builder.TakeNotes();
  return datasets;
}

}  // namespace muster
