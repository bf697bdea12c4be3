#include "common/ckpt/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace muster {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// Slicing by 8: table[k][b] is the CRC of byte b followed by k zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}
constexpr std::array<std::array<uint32_t, 256>, 8> kTables = MakeTables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cHardware(absl::string_view bytes, uint32_t crc) {
  const char* data = bytes.data();
  size_t left = bytes.size();
  uint64_t state = static_cast<uint32_t>(~crc);
  for (; left >= 8; left -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    state = _mm_crc32_u64(state, word);
  }
  uint32_t state32 = static_cast<uint32_t>(state);
  for (; left > 0; --left, ++data) {
    state32 = _mm_crc32_u8(state32, static_cast<unsigned char>(*data));
  }
  return ~state32;
}
#endif

}  // namespace

uint32_t Crc32cPortable(absl::string_view bytes, uint32_t crc) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t left = bytes.size();
  uint32_t state = ~crc;
  for (; left >= 8; left -= 8, data += 8) {
    uint32_t mixed = 0;
    for (size_t k = 0; k < 4; ++k) {
      const uint32_t byte = data[k] ^ ((state >> (8 * k)) & 0xff);
      mixed ^= kTables[7 - k][byte] ^ kTables[3 - k][data[4 + k]];
    }
    state = mixed;
  }
  for (; left > 0; --left, ++data) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xff];
  return ~state;
}

uint32_t Crc32c(absl::string_view bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return Crc32cHardware(bytes, crc);
#endif
  return Crc32cPortable(bytes, crc);
}

}  // namespace muster
