// GPT indices on disk: FINGERPRINT-GPTDataset-SPLIT-{description.txt,document_index.npy,
// sample_index.npy,shuffle_index.npy}. The description is the JSON that the fingerprint is taken
// of; a cache entry whose description differs is not used.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dataset/gpt_index.h"
#include "common/files/file_ops.h"

namespace muster {

// FNV-1a with 128 bits, as 32 hexadecimal digits.
std::string Fingerprint(absl::string_view text);

struct GptIndexCacheKey {
  std::string folder;
  std::string split;        // "train"
  std::string description;  // JSON text
  // folder/FINGERPRINT-GPTDataset-split-`suffix`
  std::string Path(absl::string_view suffix) const;
};

// NOT_FOUND when there is no entry; DATA_LOSS when it is damaged or describes something else.
absl::StatusOr<GptIndex> LoadGptIndex(const GptIndexCacheKey& key);
// The description is written last: an entry is complete when it is there.
absl::Status SaveGptIndex(FileOps& files, const GptIndexCacheKey& key, const GptIndex& index);

}  // namespace muster
