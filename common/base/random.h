// SplitMix64: a tiny seeded generator whose stream is the same everywhere, and a hash to derive
// independent streams. Used by coordinator/agent, by worker/ wherever randomness must be
// reproducible, and by tests. Not thread-safe; copy it.
#pragma once

#include <cstdint>

namespace espalier {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64-bit words.
constexpr uint64_t MixBits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}
  // A stream that shares nothing with that of other (seed, stream) pairs.
  constexpr SplitMix64(uint64_t seed, uint64_t stream)
      : state_(MixBits(seed) ^ MixBits(stream + 0x9e3779b97f4a7c15ULL)) {}

  constexpr uint64_t Next() { return MixBits(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform in [0, 1).
  constexpr double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  // Uniform in [0, bound), bound > 0; the bias is below 2^-32 for bounds below 2^32.
  constexpr uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace espalier
