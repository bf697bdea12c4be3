#include "common/dataset/indexed_dataset.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

template <typename T>
T Load(const char* array, int64_t index) {
  T value;
  std::memcpy(&value, array + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const IndexedDataset>> IndexedDataset::Open(
    const std::string& prefix) {
  std::shared_ptr<IndexedDataset> dataset(new IndexedDataset);
  dataset->prefix_ = prefix;
  ASSIGN_OR_RETURN(dataset->index_file_, MappedFile::Open(absl::StrCat(prefix, ".idx")));
  ASSIGN_OR_RETURN(dataset->token_file_, MappedFile::Open(absl::StrCat(prefix, ".bin")));
  RETURN_IF_ERROR(dataset->ParseIndex());
  RETURN_IF_ERROR(dataset->CheckSequences());
  return std::shared_ptr<const IndexedDataset>(std::move(dataset));
}

absl::Status IndexedDataset::ParseIndex() {
  const absl::string_view bytes = index_file_->bytes();
  const auto damaged = [this](const auto&... what) {
    return absl::DataLossError(absl::StrCat(index_file_->path(), ": ", what...));
  };
  if (bytes.substr(0, kIndexMagic.size()) != kIndexMagic) {
    return damaged("bad magic: not an indexed dataset (.idx begins with MMIDIDX and two zeros)");
  }
  if (static_cast<int64_t>(bytes.size()) < kIndexHeaderBytes) {
    return damaged("truncated: ", bytes.size(), " bytes, the header alone takes ",
                   kIndexHeaderBytes);
  }
  const uint64_t version = Load<uint64_t>(bytes.data() + 9, 0);
  if (version != kIndexVersion) {
    return damaged("version ", version, " is not supported; known: ", kIndexVersion);
  }
  const std::optional<TokenType> type = TokenTypeFromCode(static_cast<uint8_t>(bytes[17]));
  if (!type.has_value()) {
    return damaged("dtype code ", static_cast<int>(static_cast<uint8_t>(bytes[17])),
                   " is unknown; known: 1 to 8");
  }
  token_type_ = *type;
  const uint64_t sequences = Load<uint64_t>(bytes.data() + 18, 0);
  const uint64_t boundaries = Load<uint64_t>(bytes.data() + 26, 0);
  // Bounds first: the sizes below must not overflow.
  const uint64_t limit = bytes.size();
  const uint64_t needed = sequences > limit || boundaries > limit
                              ? ~uint64_t{0}
                              : kIndexHeaderBytes + 12 * sequences + 8 * boundaries;
  if (needed > limit) {
    return damaged("truncated: ", bytes.size(), " bytes, too few for the ", sequences,
                   " sequences and ", boundaries, " document boundaries of its header");
  }
  if (limit != needed && limit != needed + sequences) {
    return damaged("its size is ", limit, " bytes, but its header asks for ", needed, " or, with ",
                   "modes, ", needed + sequences);
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  num_boundaries_ = static_cast<int64_t>(boundaries);
  lengths_ = bytes.data() + kIndexHeaderBytes;
  offsets_ = lengths_ + 4 * num_sequences_;
  boundaries_ = offsets_ + 8 * num_sequences_;
  if (limit != needed) modes_ = boundaries_ + 8 * num_boundaries_;
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckSequences() {
  const auto damaged = [this](const auto&... what) {
    return absl::DataLossError(absl::StrCat(index_file_->path(), ": ", what...));
  };
  if (num_boundaries_ < 1) return damaged("no document boundary; the first must be 0");
  int64_t previous = 0;
  for (int64_t d = 0; d < num_boundaries_; ++d) {
    const int64_t boundary = document_boundary(d);
    if (d == 0 && boundary != 0) {
      return damaged("boundary mismatch: the first document begins at sequence ", boundary,
                     ", not 0");
    }
    if (boundary < previous) {
      return damaged("boundary mismatch: document ", d, " begins at sequence ", boundary,
                     ", before its predecessor (", previous, ")");
    }
    previous = boundary;
  }
  if (previous != num_sequences_) {
    return damaged("boundary mismatch: the last document boundary is ", previous,
                   ", but there are ", num_sequences_, " sequences");
  }
  const int64_t token_size = TokenTypeSize(token_type_);
  const int64_t file_size = static_cast<int64_t>(token_file_->bytes().size());
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int64_t length = sequence_length(s);
    const int64_t offset = Load<int64_t>(offsets_, s);
    if (length < 0) return damaged("sequence ", s, " has length ", length);
    if (offset < 0 || offset > file_size || length * token_size > file_size - offset) {
      return damaged("sequence ", s, " (", length, " tokens at byte ", offset, ") lies outside ",
                     token_file_->path(), ", which has ", file_size, " bytes: truncated?");
    }
    num_tokens_ += length;
  }
  return absl::OkStatus();
}

int64_t IndexedDataset::document_boundary(int64_t document) const {
  return Load<int64_t>(boundaries_, document);
}

int8_t IndexedDataset::sequence_mode(int64_t sequence) const {
  return Load<int8_t>(modes_, sequence);
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  return Load<int32_t>(lengths_, sequence);
}

absl::string_view IndexedDataset::SequenceBytes(int64_t sequence) const {
  return token_file_->bytes().substr(
      static_cast<size_t>(Load<int64_t>(offsets_, sequence)),
      static_cast<size_t>(sequence_length(sequence) * TokenTypeSize(token_type_)));
}

void IndexedDataset::Read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens) const {
  const char* const begin = token_file_->bytes().data() + Load<int64_t>(offsets_, sequence);
  DecodeTokens(token_type_, begin + offset * TokenTypeSize(token_type_), count, tokens);
}

std::vector<int64_t> IndexedDataset::Sequence(int64_t sequence) const {
  std::vector<int64_t> tokens(static_cast<size_t>(sequence_length(sequence)));
  Read(sequence, 0, static_cast<int64_t>(tokens.size()), tokens.data());
  return tokens;
}

}  // namespace muster
