#include "cli/programs.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace muster {

std::string ProgramBeside(absl::string_view name) {
  char path[4096];
  const ssize_t count = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, count > 0 ? count : 0);
  const size_t slash = self.rfind('/');
  if (slash == std::string::npos) return std::string(name);
  return absl::StrCat(self.substr(0, slash), "/", name);
}

}  // namespace muster
