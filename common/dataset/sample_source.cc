#include "common/dataset/sample_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

void GptSamples::ReadText(int64_t sample, int64_t* text) const {
  const int64_t row = index_.shuffle[sample];
  const int64_t first_document = index_.sample[2 * row];
  const int64_t first_offset = index_.sample[2 * row + 1];
  const int64_t last_document = index_.sample[2 * (row + 1)];
  const int64_t last_offset = index_.sample[2 * (row + 1) + 1];
  int64_t filled = 0;
  for (int64_t d = first_document; d <= last_document; ++d) {
    const int64_t sequence = index_.document[d];
    const int64_t begin = d == first_document ? first_offset : 0;
    // The row after names this sample's extra token, so it is part of it.
    const int64_t end = d == last_document ? last_offset + 1 : source_->sequence_length(sequence);
    source_->Read(sequence, begin, end - begin, text + filled);
    filled += end - begin;
  }
  std::fill(text + filled, text + seq_length_ + 1, kNoToken);
}

absl::StatusOr<std::shared_ptr<const SampleSource>> BlendedSamples::Create(
    std::vector<std::shared_ptr<const SampleSource>> parts, BlendIndex index) {
  for (size_t i = 0; i < index.dataset.size(); ++i) {
    const size_t part = static_cast<size_t>(index.dataset[i]);
    if (index.sample[i] >= parts[part]->size()) {
      return absl::OutOfRangeError(absl::StrCat(
          "the blend wants sample ", index.sample[i], " of dataset ", part, ", which has ",
          parts[part]->size(), "; ask for fewer samples or change the weights"));
    }
  }
  return std::shared_ptr<const SampleSource>(
      new BlendedSamples(std::move(parts), std::move(index)));
}

void BlendedSamples::ReadText(int64_t sample, int64_t* text) const {
  const size_t i = static_cast<size_t>(sample);
  parts_[static_cast<size_t>(index_.dataset[i])]->ReadText(index_.sample[i], text);
}

}  // namespace muster
