// SHA-1 (FIPS 180-4): to compare contents, not to secure anything. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster {

using Sha1Digest = std::array<uint8_t, 20>;

Sha1Digest Sha1(absl::string_view bytes);

}  // namespace muster
