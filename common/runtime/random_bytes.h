// Names that no two processes give twice: incarnations, ids, nonces. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace muster {

// From the system's source of randomness.
std::string RandomBytes(size_t size);

}  // namespace muster
