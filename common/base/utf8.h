// Text that may come from anywhere, made fit for what only takes UTF-8 (JSON, Prometheus, HTML).
// Thread-safe: a function of values.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// `text` with every byte that belongs to no character of UTF-8 (overlong forms, surrogates and code
// points above U+10FFFF are none) replaced by U+FFFD.
std::string ValidUtf8(absl::string_view text);

// The first `max_bytes` bytes at most, without a character that would be cut in two.
std::string Utf8Prefix(absl::string_view text, size_t max_bytes);

}  // namespace muster
