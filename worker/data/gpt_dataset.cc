#include "worker/data/gpt_dataset.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"

namespace muster {

absl::StatusOr<Batch> GptDataset::Collate(const std::vector<int64_t>& indices) const {
  const int64_t B = static_cast<int64_t>(indices.size());
  const int64_t S = options_.seq_length;
  Batch batch{.tokens = at::empty({B, S}, at::kLong),
              .labels = at::empty({B, S}, at::kLong),
              .loss_mask = at::empty({B, S}, at::kFloat),
              .position_ids = at::empty({B, S}, at::kLong)};
  bool* attention_mask = nullptr;
  if (options_.reset_attention_mask) {
    batch.attention_mask = at::empty({B, 1, S, S}, at::kBool);
    attention_mask = batch.attention_mask.data_ptr<bool>();
  }
  std::vector<int64_t> text(static_cast<size_t>(S + 1));
  for (int64_t b = 0; b < B; ++b) {
    const int64_t sample = indices[static_cast<size_t>(b)];
    if (sample < 0 || sample >= size()) {
      return absl::OutOfRangeError(
          absl::StrCat("sample ", sample, " of a dataset of ", size(), " samples"));
    }
    samples_->ReadText(sample, text.data());
    const int64_t largest = *std::max_element(text.begin(), text.end());
    if (largest >= vocab_size_) {
      return absl::DataLossError(absl::StrCat(
          "sample ", sample, " holds token ", largest, ", but the vocabulary has ", vocab_size_,
          " (model.vocab_size); was the data made with another tokenizer?"));
    }
    FillGptSample(
        text.data(), options_,
        {.tokens = batch.tokens.data_ptr<int64_t>() + b * S,
         .labels = batch.labels.data_ptr<int64_t>() + b * S,
         .loss_mask = batch.loss_mask.data_ptr<float>() + b * S,
         .position_ids = batch.position_ids.data_ptr<int64_t>() + b * S,
         .attention_mask = attention_mask == nullptr ? nullptr : attention_mask + b * S * S});
  }
  return batch;
}

}  // namespace muster
