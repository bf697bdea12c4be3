#include "common/dataset/indexed_dataset_builder.h"

#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

template <typename T>
void AppendValue(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

absl::StatusOr<IndexedDatasetBuilder> IndexedDatasetBuilder::Create(const std::string& prefix,
                                                                    TokenType type,
                                                                    FileOps& files) {
  IndexedDatasetBuilder builder(prefix, type, files);
  ASSIGN_OR_RETURN(builder.token_file_, files.Create(absl::StrCat(prefix, ".bin.partial")));
  return builder;
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() {
  if (token_file_ == nullptr) return;
  token_file_.reset();
  (void)files_->RemoveAll(absl::StrCat(prefix_, ".bin.partial"));
}

absl::Status IndexedDatasetBuilder::AddDocument(const std::vector<int64_t>& tokens) {
  return AddDocument(tokens, {static_cast<int64_t>(tokens.size())});
}

absl::Status IndexedDatasetBuilder::AddDocument(const std::vector<int64_t>& tokens,
                                                const std::vector<int64_t>& lengths) {
  MUSTER_CHECK_MSG(token_file_ != nullptr, "AddDocument after Finish");
  int64_t total = 0;
  for (const int64_t length : lengths) {
    if (length < 0 || length > std::numeric_limits<int32_t>::max()) {
      return absl::OutOfRangeError(absl::StrCat(prefix_, ".idx: document ", num_documents(),
                                                " has a sequence of ", length,
                                                " tokens; lengths are int32, split it"));
    }
    total += length;
  }
  if (total != static_cast<int64_t>(tokens.size())) {
    return absl::InvalidArgumentError(absl::StrCat(prefix_, ".idx: document ", num_documents(),
                                                   ": its sequence lengths add up to ", total,
                                                   ", but it has ", tokens.size(), " tokens"));
  }
  const int64_t smallest = MinToken(type_);
  const int64_t largest = MaxToken(type_);
  std::string bytes;
  bytes.reserve(tokens.size() * static_cast<size_t>(TokenTypeSize(type_)));
  for (const int64_t token : tokens) {
    if (token < smallest || token > largest) {
      return absl::OutOfRangeError(absl::StrCat(
          prefix_, ".bin: document ", num_documents(), ": token ", token, " does not fit ",
          TokenTypeName(type_), " (", smallest, " to ", largest, ")"));
    }
    EncodeToken(type_, token, bytes);
  }
  RETURN_IF_ERROR(AppendBytes(bytes));
  lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  boundaries_.push_back(static_cast<int64_t>(lengths_.size()));
  return absl::OkStatus();
}

absl::Status IndexedDatasetBuilder::AddDataset(const IndexedDataset& dataset) {
  MUSTER_CHECK_MSG(token_file_ != nullptr, "AddDataset after Finish");
  if (dataset.token_type() != type_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merging ", dataset.prefix(), ": its tokens are ", TokenTypeName(dataset.token_type()),
        ", those of ", prefix_, " are ", TokenTypeName(type_), "; they must be the same"));
  }
  if (dataset.has_modes()) {
    return absl::UnimplementedError(
        absl::StrCat("merging ", dataset.prefix(), ": it has modes (a multimodal file)"));
  }
  const int64_t shift = static_cast<int64_t>(lengths_.size());
  for (int64_t s = 0; s < dataset.num_sequences(); ++s) {
    RETURN_IF_ERROR(AppendBytes(dataset.SequenceBytes(s)));
    lengths_.push_back(static_cast<int32_t>(dataset.sequence_length(s)));
  }
  for (int64_t d = 1; d <= dataset.num_documents(); ++d) {
    boundaries_.push_back(shift + dataset.document_boundary(d));
  }
  return absl::OkStatus();
}

absl::Status IndexedDatasetBuilder::AppendBytes(absl::string_view bytes) {
  num_bytes_ += static_cast<int64_t>(bytes.size());
  buffer_.append(bytes.data(), bytes.size());
  if (buffer_.size() < kBufferBytes) return absl::OkStatus();
  const absl::Status status = token_file_->Append(buffer_);
  buffer_.clear();
  return status;
}

std::string IndexedDatasetBuilder::IndexBytes() const {
  std::string bytes(kIndexMagic);
  bytes.reserve(kIndexHeaderBytes + 12 * lengths_.size() + 8 * boundaries_.size());
  AppendValue<uint64_t>(kIndexVersion, bytes);
  AppendValue<uint8_t>(static_cast<uint8_t>(type_), bytes);
  AppendValue<uint64_t>(lengths_.size(), bytes);
  AppendValue<uint64_t>(boundaries_.size(), bytes);
  for (const int32_t length : lengths_) AppendValue<int32_t>(length, bytes);
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    AppendValue<int64_t>(offset, bytes);
    offset += length * TokenTypeSize(type_);
  }
  for (const int64_t boundary : boundaries_) AppendValue<int64_t>(boundary, bytes);
  return bytes;
}

absl::Status IndexedDatasetBuilder::Finish() {
  MUSTER_CHECK_MSG(token_file_ != nullptr, "Finish called twice");
  const std::string tokens_aside = absl::StrCat(prefix_, ".bin.partial");
  RETURN_IF_ERROR(token_file_->Append(buffer_));
  RETURN_IF_ERROR(token_file_->Sync());
  RETURN_IF_ERROR(token_file_->Close());
  // An older .idx must not describe the new tokens for a moment, nor after a crash.
  RETURN_IF_ERROR(files_->RemoveAll(absl::StrCat(prefix_, ".idx")));
  RETURN_IF_ERROR(files_->Rename(tokens_aside, absl::StrCat(prefix_, ".bin")));
  RETURN_IF_ERROR(WriteFileAtomically(*files_, absl::StrCat(prefix_, ".idx"), IndexBytes()));
  token_file_.reset();
  return absl::OkStatus();
}

}  // namespace muster
