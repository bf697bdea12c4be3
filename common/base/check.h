// MUSTER_CHECK: our own mistakes only (invariants), never input. Prints file, line and condition,
// then aborts.
#pragma once

#include "absl/strings/string_view.h"

namespace muster {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              absl::string_view message);
}  // namespace muster

#define MUSTER_CHECK(condition) MUSTER_CHECK_MSG(condition, "")
#define MUSTER_CHECK_MSG(condition, message)                                            \
  do {                                                                                  \
    if (!(condition)) ::muster::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
