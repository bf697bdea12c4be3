#include "coordinator/engine/space_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {

SpaceReserve::SpaceReserve(std::string path, int64_t bytes)
    : path_(std::move(path)), bytes_(bytes) {
  struct stat info = {};
  // 512: the unit of st_blocks. A file with holes would have nothing to give back.
  held_ = bytes_ > 0 && stat(path_.c_str(), &info) == 0 && int64_t{info.st_blocks} * 512 >= bytes_;
}

absl::Status SpaceReserve::Take() {
  if (held_ || bytes_ == 0) return absl::OkStatus();
  // As much again must be free besides, or it would be freed again at once.
  struct statvfs disk = {};
  const std::string folder = path_.substr(0, path_.rfind('/') + 1);
  if (statvfs(folder.empty() ? "." : folder.c_str(), &disk) == 0 &&
      static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize) < 2 * bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "less than ", 2 * bytes_ >> 20, " MiB are free in ", folder, "; make room there"));
  }
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  int error = fd < 0 ? errno : posix_fallocate(fd, 0, bytes_);
  if (fd >= 0) close(fd);
  if (error != 0) {
    unlink(path_.c_str());
    return absl::ResourceExhaustedError(absl::StrCat(
        path_, ": ", bytes_ >> 20, " MiB cannot be kept in reserve: ", std::strerror(error),
        "; make room there"));
  }
  held_ = true;
  return absl::OkStatus();
}

bool SpaceReserve::Free() {
  if (!std::exchange(held_, false)) return false;
  return unlink(path_.c_str()) == 0;
}

}  // namespace muster
