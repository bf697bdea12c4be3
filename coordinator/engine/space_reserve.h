// A file that only takes up space, so that there is some to give back when the disk is full. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace muster {

class SpaceReserve {
 public:
  SpaceReserve(std::string path, int64_t bytes);

  // Allocates it, unless it is there. Not OK: there is no room, and nothing was taken.
  absl::Status Take();
  // Frees it. False when there was nothing to free.
  bool Free();
  bool held() const { return held_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const int64_t bytes_;
  bool held_ = false;
};

}  // namespace muster
