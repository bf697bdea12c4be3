#include "common/base/sha1.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace muster {
namespace {

constexpr size_t kBlock = 64;  // bytes

// One block into the state (FIPS 180-4, 6.1.2).
void AddBlock(const uint8_t* block, std::array<uint32_t, 5>& state) {
  uint32_t w[80];
  for (int t = 0; t < 16; ++t) {
    w[t] = static_cast<uint32_t>(block[4 * t]) << 24 |
           static_cast<uint32_t>(block[4 * t + 1]) << 16 |
           static_cast<uint32_t>(block[4 * t + 2]) << 8 | static_cast<uint32_t>(block[4 * t + 3]);
  }
  for (int t = 16; t < 80; ++t) w[t] = std::rotl(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
  auto [a, b, c, d, e] = state;
  for (int t = 0; t < 80; ++t) {
    uint32_t f = 0, k = 0;
    if (t < 20) {
      f = (b & c) | (~b & d);
      k = 0x5a827999;
    } else if (t < 40) {
      f = b ^ c ^ d;
      k = 0x6ed9eba1;
    } else if (t < 60) {
      f = (b & c) | (b & d) | (c & d);
      k = 0x8f1bbcdc;
    } else {
      f = b ^ c ^ d;
      k = 0xca62c1d6;
    }
    const uint32_t next = std::rotl(a, 5) + f + e + k + w[t];
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = next;
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e};
}

}  // namespace

Sha1Digest Sha1(absl::string_view bytes) {
  std::array<uint32_t, 5> state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= kBlock; left -= kBlock, data += kBlock) AddBlock(data, state);

  // The rest, a one bit, zeros, and the length in bits as the last 8 bytes of a block.
  uint8_t tail[2 * kBlock] = {};
  if (left > 0) std::memcpy(tail, data, left);
  tail[left] = 0x80;
  const size_t tail_bytes = left + 9 <= kBlock ? kBlock : 2 * kBlock;
  const uint64_t bits = static_cast<uint64_t>(bytes.size()) * 8;
  for (size_t i = 0; i < 8; ++i) tail[tail_bytes - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  for (size_t at = 0; at < tail_bytes; at += kBlock) AddBlock(tail + at, state);

  Sha1Digest digest;
  for (size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace muster
