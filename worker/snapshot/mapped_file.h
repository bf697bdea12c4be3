// A file in memory whose parts are mapped, and whose room is taken and given back. No torch.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

inline constexpr int64_t kMappedPage = 4096;  // bytes; mappings begin at multiples of it
// Bytes of the pages that hold so many.
inline int64_t PagesFor(int64_t bytes) {
  return (bytes + kMappedPage - 1) / kMappedPage * kMappedPage;
}

// Bytes of the file that stay mapped while this lives.
class MappedBytes {
 public:
  MappedBytes(char* data, int64_t size) : data_(data), size_(size) {}
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;
  char* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  char* const data_;
  const int64_t size_;
};

// Of errno, with what failed. NOT_FOUND, RESOURCE_EXHAUSTED (no room), else UNAVAILABLE.
absl::Status MappedFileError(absl::string_view what);

absl::StatusOr<std::shared_ptr<MappedBytes>> MapFile(int fd, int64_t begin, int64_t size);
// Takes the memory now: a page that is missing later would be a signal, not an error.
absl::Status ReserveInFile(int fd, int64_t begin, int64_t size);
void GiveBackToFile(int fd, int64_t begin, int64_t size);

}  // namespace muster
