#include "common/dataset/numpy_random.h"

namespace muster {

NumpyRandomState::NumpyRandomState(int64_t seed) {
  state_[0] = static_cast<uint32_t>(static_cast<uint64_t>(seed) & 0xffffffffu);
  for (int i = 1; i < kWords; ++i) {
    // 1812433253: Knuth, The Art of Computer Programming, volume 2, section 3.3.4.
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
  }
}

void NumpyRandomState::Regenerate() {
  constexpr int kOffset = 397;
  constexpr uint32_t kMatrix = 0x9908b0dfu;
  for (int i = 0; i < kWords; ++i) {
    const uint32_t mixed = (state_[i] & 0x80000000u) | (state_[(i + 1) % kWords] & 0x7fffffffu);
    state_[i] = state_[(i + kOffset) % kWords] ^ (mixed >> 1) ^ ((mixed & 1) ? kMatrix : 0);
  }
  next_ = 0;
}

uint32_t NumpyRandomState::NextUint32() {
  if (next_ == kWords) Regenerate();
  uint32_t word = state_[next_++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

uint64_t NumpyRandomState::Interval(uint64_t largest) {
  uint64_t mask = largest;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  while (true) {
    uint64_t value = NextUint32();
    if (largest > 0xffffffffu) value = (value << 32) | NextUint32();
    value &= mask;
    if (value <= largest) return value;
  }
}

NumpyPcg64 NumpyPcg64::DefaultRng0() {
  const auto combine = [](uint64_t high, uint64_t low) { return (Uint128{high} << 64) | low; };
  return NumpyPcg64(combine(0x1aa1b5345996452dull, 0x09585eb7a69561e3ull),
                    combine(0x418ddadb3af71a82ull, 0x588133bc447873a9ull));
}

uint64_t NumpyPcg64::NextUint64() {
  constexpr Uint128 kMultiplier = (Uint128{2549297995355413924ull} << 64) | 4865540595714422341ull;
  state_ = state_ * kMultiplier + increment_;
  const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const int rotation = static_cast<int>(state_ >> 122);
  return (folded >> rotation) | (folded << ((64 - rotation) & 63));
}

uint32_t NumpyPcg64::NextUint32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t word = NextUint64();
  has_half_ = true;
  half_ = static_cast<uint32_t>(word >> 32);
  return static_cast<uint32_t>(word);
}

int32_t NumpyPcg64::Integer(int32_t low, int32_t high) {
  const uint32_t count = static_cast<uint32_t>(high) - static_cast<uint32_t>(low);
  uint64_t product = uint64_t{NextUint32()} * count;
  if (static_cast<uint32_t>(product) < count) {
    const uint32_t threshold = (0u - count) % count;  // 2^32 mod count
    while (static_cast<uint32_t>(product) < threshold) product = uint64_t{NextUint32()} * count;
  }
  return low + static_cast<int32_t>(product >> 32);
}

}  // namespace muster
