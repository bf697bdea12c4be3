#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace muster {

void CheckFailed(const char* file, int line, const char* condition, absl::string_view message) {
  std::fprintf(stderr, "%s:%d: internal error: %s does not hold %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace muster
