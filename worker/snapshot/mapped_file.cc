#include "worker/snapshot/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster {

MappedBytes::~MappedBytes() { munmap(data_, static_cast<size_t>(size_)); }

absl::Status MappedFileError(absl::string_view what) {
  const int error = errno;
  const std::string text = absl::StrCat("snapshot memory: ", what, ": ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == ENOMEM || error == EFBIG || error == EPERM || error == EDQUOT)
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::StatusOr<std::shared_ptr<MappedBytes>> MapFile(int fd, int64_t begin, int64_t size) {
  void* const at = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(begin));
  if (at == MAP_FAILED) return MappedFileError(absl::StrCat("mapping ", size, " bytes"));
  return std::make_shared<MappedBytes>(static_cast<char*>(at), size);
}

// In pieces, since a signal makes the kernel begin a piece again.
absl::Status ReserveInFile(int fd, int64_t begin, int64_t size) {
  constexpr int64_t kPiece = 64 << 20;
  for (int64_t done = 0; done < size;) {
    const int64_t piece = std::min(kPiece, size - done);
    if (fallocate(fd, 0, static_cast<off_t>(begin + done), static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno != EINTR) {
      return MappedFileError(absl::StrCat("no room for ", size, " bytes"));
    }
  }
  return absl::OkStatus();
}

void GiveBackToFile(int fd, int64_t begin, int64_t size) {
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(size));
}

}  // namespace muster
