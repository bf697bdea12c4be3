// The two random streams of numpy that Megatron's data path depends on, bit for bit: the legacy
// RandomState (MT19937, Matsumoto and Nishimura 1998) with its shuffle, and default_rng(0)'s
// bounded integers (PCG64 XSL-RR, O'Neill 2014). Not thread-safe. Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace muster {

// numpy.random.RandomState(seed): the generator is init_genrand(seed mod 2^32).
class NumpyRandomState {
 public:
  explicit NumpyRandomState(int64_t seed);
  uint32_t NextUint32();

  // In place, as RandomState.shuffle on a one-dimensional array: i from size - 1 down to 1, j drawn
  // from [0, i] by masked rejection, swap.
  template <typename T>
  void Shuffle(T* values, int64_t size) {
    for (int64_t i = size - 1; i > 0; --i) {
      std::swap(values[i], values[Interval(static_cast<uint64_t>(i))]);
    }
  }

 private:
  // Uniform in [0, largest]: masked to the next 2^k - 1, redrawn while above.
  uint64_t Interval(uint64_t largest);
  void Regenerate();

  static constexpr int kWords = 624;
  uint32_t state_[kWords];
  int next_ = kWords;
};

// numpy.random.PCG64 from a given state and increment (what its SeedSequence derives from a seed is
// not implemented: Megatron's mock data uses seed 0 only).
class NumpyPcg64 {
 public:
  static NumpyPcg64 DefaultRng0();  // numpy.random.default_rng(0)

  uint64_t NextUint64();
  // Each 64-bit output gives two 32-bit ones, the low half first.
  uint32_t NextUint32();
  // Generator.integers(low, high, dtype=int32): Lemire 2019, nearly divisionless. Needs low < high.
  int32_t Integer(int32_t low, int32_t high);

 private:
  using Uint128 = unsigned __int128;
  NumpyPcg64(Uint128 state, Uint128 increment) : state_(state), increment_(increment) {}

  Uint128 state_;
  const Uint128 increment_;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace muster
