// A folder that removes itself; in memory where the system has such a place, since nothing here
// depends on what survives a power cut.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace muster {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = "/dev/shm/muster-engine-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      pattern = std::filesystem::temp_directory_path() / "muster-engine-XXXXXX";
      if (mkdtemp(pattern.data()) == nullptr) std::abort();
    }
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster
