// Reasons that callers give. Thread-safe: a function of values.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/utf8.h"

namespace muster {

// A reason ends up in states, events and log lines: beyond this many bytes it is cut.
inline constexpr size_t kMaxReason = 1'024;

inline std::string ReasonOf(absl::string_view text) { return Utf8Prefix(text, kMaxReason); }

}  // namespace muster
