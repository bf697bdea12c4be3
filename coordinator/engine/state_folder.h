// The folder that one coordinator keeps its state in, locked for as long as this object lives (and
// no longer than its process).
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace muster {

class StateFolder {
 public:
  // Makes it when there is none. INVALID_ARGUMENT: it cannot be made or written; ALREADY_EXISTS:
  // another process holds it, with its pid.
  static absl::StatusOr<StateFolder> Open(const std::string& path);
  StateFolder(StateFolder&& other) noexcept;
  StateFolder& operator=(StateFolder&&) = delete;
  ~StateFolder();

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  StateFolder(std::string path, int fd);
  const std::string path_;
  int fd_ = -1;
};

}  // namespace muster
