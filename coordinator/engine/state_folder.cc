#include "coordinator/engine/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::string HolderOf(int fd) {
  char text[32];
  const ssize_t size = pread(fd, text, sizeof(text), 0);
  const absl::string_view pid =
      absl::StripAsciiWhitespace(absl::string_view(text, size > 0 ? size : 0));
  return pid.empty() ? "another coordinator" : absl::StrCat("the coordinator with pid ", pid);
}

}  // namespace

absl::StatusOr<StateFolder> StateFolder::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--state-dir=", path, ": cannot be made: ", error.message()));
  }
  const int fd = open(absl::StrCat(path, "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--state-dir=", path, ": cannot be written: ", std::strerror(errno)));
  }
  StateFolder folder(path, fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("--state-dir=", path, ": ", HolderOf(fd),
                                                 " uses it; give each its own, or stop that one"));
  }
  // Only for that message, so a disk without room for it is no error.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) == 0) (void)!pwrite(fd, pid.data(), pid.size(), 0);
  return folder;
}

StateFolder::StateFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
StateFolder::StateFolder(StateFolder&& other) noexcept
    : path_(other.path_), fd_(std::exchange(other.fd_, -1)) {}
StateFolder::~StateFolder() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace muster
