// A file mapped read-only into memory for as long as the object lives. Thread-safe to read.
// Invariant: bytes().size() is the file's size when it was opened; a file that shrinks under a
// mapping kills the process, which is why every format here is replaced by rename and never
// rewritten in place.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

class MappedFile {
 public:
  // NOT_FOUND when there is no such file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::string_view bytes() const { return absl::string_view(data_, size_); }

 private:
  MappedFile(std::string path, const char* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  const std::string path_;
  const char* const data_;
  const size_t size_;
};

}  // namespace muster
