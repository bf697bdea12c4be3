// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected; RFC 3720 appendix B.4), the checksum of
// every checkpoint byte. Finds every burst of up to 32 bits. Uses the SSE4.2 instruction where the
// processor has it. Pure.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster {

// Extends `crc` (0 for nothing yet) by `bytes`: Crc32c(b, Crc32c(a)) == Crc32c(a + b).
uint32_t Crc32c(absl::string_view bytes, uint32_t crc = 0);

// The table version, whatever the processor; for tests and as fallback.
uint32_t Crc32cPortable(absl::string_view bytes, uint32_t crc = 0);

}  // namespace muster
