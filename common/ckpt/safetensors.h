// The safetensors file format: 8 bytes with the header's size N, N bytes of JSON, then the tensors'
// bytes back to back. Layout and rules: docs/formats.md. No torch: tensors are names, shapes and
// bytes.
//
// Invariants of what is written, checked when read: tensors lie in the order of their offsets with
// no gap and no overlap, the data begins at a multiple of 8, and each tensor at a multiple of its
// element size (larger elements come first).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/files/file_ops.h"
#include "common/files/mapped_file.h"

namespace muster {

enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

absl::string_view DTypeName(DType type);  // safetensors': "BF16"
std::optional<DType> DTypeFromName(absl::string_view name);
int64_t DTypeSize(DType type);  // bytes an element

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};
int64_t NumElements(const std::vector<int64_t>& shape);
int64_t NumBytes(const TensorInfo& info);

// Where a tensor lies in a written or read file.
struct TensorPlace {
  TensorInfo info;
  int64_t begin = 0, end = 0;  // bytes, from the start of the file
  uint32_t crc32c = 0;         // of those bytes; filled by the writer, not by the reader
};

struct SafetensorsLayout {
  std::string header;               // the file's first bytes: size, JSON, padding
  std::vector<TensorPlace> places;  // in file order
  int64_t file_bytes = 0;
};

// Orders the tensors by falling element size, then as given. INVALID_ARGUMENT: a name twice, a
// reserved name, a negative extent.
absl::StatusOr<SafetensorsLayout> PlanSafetensors(
    const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata);

// Writes a planned file and syncs it: `bytes_of(i)` gives the bytes of layout.places[i], valid
// until the next call. Fills the checksums.
absl::Status WriteSafetensors(
    FileOps& files, const std::string& path, SafetensorsLayout& layout,
    const std::function<absl::StatusOr<absl::string_view>(size_t)>& bytes_of);

// A mapped file. Thread-safe to read.
class SafetensorsFile {
 public:
  // NOT_FOUND; DATA_LOSS naming the file and the rule it breaks.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  const std::vector<TensorPlace>& places() const { return places_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Null when there is no such tensor.
  const TensorPlace* Find(absl::string_view name) const;
  absl::string_view BytesOf(const TensorPlace& place) const;
  int64_t header_bytes() const { return header_bytes_; }  // size field, JSON and padding
  absl::string_view bytes() const { return file_->bytes(); }

 private:
  absl::Status Parse();

  std::unique_ptr<MappedFile> file_;
  std::vector<TensorPlace> places_;
  std::map<std::string, size_t> index_;  // name -> position in places_
  std::map<std::string, std::string> metadata_;
  int64_t header_bytes_ = 0;
};

}  // namespace muster
