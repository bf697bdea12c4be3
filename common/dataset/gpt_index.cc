#include "common/dataset/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/dataset/numpy_random.h"

namespace muster {
namespace {

// Rows (position in `documents`, offset) flattened; T is the smallest type that holds the values.
template <typename T>
absl::StatusOr<std::vector<T>> BuildSampleIndex(const TokenSource& source,
                                                const std::vector<int32_t>& documents,
                                                int64_t num_samples, int64_t seq_length,
                                                int64_t extra) {
  std::vector<T> rows;
  rows.reserve(static_cast<size_t>(2 * (num_samples + 1)));
  rows.insert(rows.end(), {T{0}, T{0}});
  const int64_t last = static_cast<int64_t>(documents.size()) - 1;
  int64_t document = 0;
  int64_t offset = 0;
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    int64_t needed = seq_length + extra;
    while (true) {
      const int64_t whole = source.sequence_length(documents[static_cast<size_t>(document)]);
      const int64_t length = whole - offset;
      needed -= length;
      if (needed <= 0) {
        // The next sample begins with this one's extra token.
        offset += needed + length - extra;
        break;
      }
      if (document == last) {
        offset = whole - extra;
        break;
      }
      ++document;
      offset = 0;
    }
    if (offset < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("sample ", sample, " ends in an empty document (the last of the split); ",
                       "drop the last partial sample or remove the empty document"));
    }
    rows.push_back(static_cast<T>(document));
    rows.push_back(static_cast<T>(offset));
  }
  return rows;
}

// The first `split` entries are shuffled among themselves, then the rest.
template <typename T>
std::vector<T> BuildShuffleIndex(int64_t size, int64_t split, NumpyRandomState& random) {
  std::vector<T> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), T{0});
  random.Shuffle(order.data(), split);
  random.Shuffle(order.data() + split, size - split);
  return order;
}

}  // namespace

GptEpochs CountEpochs(int64_t tokens_per_epoch, int64_t seq_length,
                      std::optional<int64_t> num_samples, bool add_extra_token) {
  GptEpochs epochs;
  if (!num_samples.has_value()) return epochs;
  const int64_t extra = add_extra_token ? 1 : 0;
  const int64_t needed = *num_samples * seq_length + extra;
  epochs.num_epochs = std::max<int64_t>(1, (needed + tokens_per_epoch - 1) / tokens_per_epoch);
  if (epochs.num_epochs == 1) return epochs;
  const int64_t before_last = ((epochs.num_epochs - 1) * tokens_per_epoch - extra) / seq_length;
  const int64_t of_last = *num_samples - before_last;
  const int64_t per_epoch = (tokens_per_epoch - extra) / seq_length;
  MUSTER_CHECK(0 <= of_last && of_last <= per_epoch + 1);
  epochs.samples_before_last_epoch = before_last;
  epochs.separate_last_epoch = of_last < static_cast<int64_t>(0.8 * static_cast<double>(per_epoch));
  return epochs;
}

absl::StatusOr<GptIndex> BuildGptIndex(const TokenSource& source, const GptIndexOptions& options) {
  const int64_t extra = options.add_extra_token ? 1 : 0;
  const int64_t num_documents = options.end_sequence - options.first_sequence;
  int64_t tokens_per_epoch = 0;
  int64_t longest = 0;
  for (int64_t d = options.first_sequence; d < options.end_sequence; ++d) {
    tokens_per_epoch += source.sequence_length(d);
    longest = std::max(longest, source.sequence_length(d));
  }
  if (tokens_per_epoch == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", num_documents, " documents of this split hold no tokens"));
  }
  const GptEpochs epochs = CountEpochs(tokens_per_epoch, options.seq_length, options.num_samples,
                                       options.add_extra_token);
  const int64_t tokens = epochs.num_epochs * tokens_per_epoch - extra;
  int64_t num_samples = tokens / options.seq_length;
  if (!options.drop_last_partial) {
    // Megatron divides in float32; above 2^24 tokens the count may be off by a few. Kept.
    num_samples = static_cast<int64_t>(
        std::ceil(static_cast<float>(tokens) / static_cast<float>(options.seq_length)));
  }
  if (num_samples < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", num_documents, " documents of this split hold ", tokens_per_epoch,
                     " tokens, too few for one sample of model.seq_length=", options.seq_length));
  }

  // One stream for everything: the order of the draws is part of the format.
  NumpyRandomState random(options.seed);
  std::vector<int32_t> documents(static_cast<size_t>(epochs.num_epochs * num_documents));
  for (size_t i = 0; i < documents.size(); ++i) {
    documents[i] =
        static_cast<int32_t>(options.first_sequence + static_cast<int64_t>(i) % num_documents);
  }
  const int64_t shuffled_together =
      (epochs.separate_last_epoch ? epochs.num_epochs - 1 : epochs.num_epochs) * num_documents;
  random.Shuffle(documents.data(), shuffled_together);
  random.Shuffle(documents.data() + shuffled_together,
                 static_cast<int64_t>(documents.size()) - shuffled_together);

  GptIndex index;
  if (std::max(static_cast<int64_t>(documents.size()), longest) <
      std::numeric_limits<int32_t>::max()) {
    ASSIGN_OR_RETURN(auto rows, BuildSampleIndex<int32_t>(source, documents, num_samples,
                                                          options.seq_length, extra));
    index.sample = IndexArray::FromInt32(std::move(rows));
  } else {
    ASSIGN_OR_RETURN(auto rows, BuildSampleIndex<int64_t>(source, documents, num_samples,
                                                          options.seq_length, extra));
    index.sample = IndexArray::FromInt64(std::move(rows));
  }
  index.document = IndexArray::FromInt32(std::move(documents));
  const int64_t split = epochs.separate_last_epoch ? epochs.samples_before_last_epoch : num_samples;
  if (num_samples >= int64_t{std::numeric_limits<uint32_t>::max()} - 1) {
    index.shuffle = IndexArray::FromInt64(BuildShuffleIndex<int64_t>(num_samples, split, random));
  } else {
    index.shuffle = IndexArray::FromUint32(BuildShuffleIndex<uint32_t>(num_samples, split, random));
  }
  return index;
}

}  // namespace muster
