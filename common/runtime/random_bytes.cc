#include "common/runtime/random_bytes.h"

#include <random>

namespace muster {

std::string RandomBytes(size_t size) {
  std::random_device random;
  std::string bytes;
  while (bytes.size() < size) bytes += static_cast<char>(random());
  return bytes;
}

}  // namespace muster
