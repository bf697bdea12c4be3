#include "common/dataset/gpt_index_cache.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace muster {

std::string Fingerprint(absl::string_view text) {
  using Uint128 = unsigned __int128;
  // Offset basis and prime of draft-eastlake-fnv.
  Uint128 hash = (Uint128{0x6c62272e07bb0142ull} << 64) | 0x62b821756295c58dull;
  constexpr Uint128 kPrime = (Uint128{1} << 88) | 0x13b;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= kPrime;
  }
  return absl::StrFormat("%016x%016x", static_cast<uint64_t>(hash >> 64),
                         static_cast<uint64_t>(hash));
}

std::string GptIndexCacheKey::Path(absl::string_view suffix) const {
  return absl::StrCat(folder, "/", Fingerprint(description), "-GPTDataset-", split, "-", suffix);
}

absl::StatusOr<GptIndex> LoadGptIndex(const GptIndexCacheKey& key) {
  const std::string description_path = key.Path("description.txt");
  ASSIGN_OR_RETURN(const std::string description, ReadWholeFile(description_path));
  if (description != key.description) {
    return absl::DataLossError(
        absl::StrCat(description_path, " describes another index; delete the cache folder"));
  }
  GptIndex index;
  ASSIGN_OR_RETURN(index.document, IndexArray::Map(key.Path("document_index.npy")));
  ASSIGN_OR_RETURN(index.sample, IndexArray::Map(key.Path("sample_index.npy")));
  ASSIGN_OR_RETURN(index.shuffle, IndexArray::Map(key.Path("shuffle_index.npy")));
  if (index.sample.size() != 2 * (index.shuffle.size() + 1)) {
    return absl::DataLossError(
        absl::StrCat(key.Path("sample_index.npy"), " has ", index.sample.size() / 2, " rows; the ",
                     index.shuffle.size(), " samples need one more than that"));
  }
  return index;
}

absl::Status SaveGptIndex(FileOps& files, const GptIndexCacheKey& key, const GptIndex& index) {
  RETURN_IF_ERROR(files.CreateDirectories(key.folder));
  RETURN_IF_ERROR(index.document.Write(files, key.Path("document_index.npy"), 1));
  RETURN_IF_ERROR(index.sample.Write(files, key.Path("sample_index.npy"), 2));
  RETURN_IF_ERROR(index.shuffle.Write(files, key.Path("shuffle_index.npy"), 1));
  return WriteFileAtomically(files, key.Path("description.txt"), key.description);
}

}  // namespace muster
