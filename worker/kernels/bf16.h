// Bf16: a bfloat16 number as kernels see it, without LibTorch; the bits are c10::BFloat16's.
// Arithmetic is done in float. Any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace espalier::cpu {

struct Bf16 {
  uint16_t bits;
};

inline __attribute__((always_inline)) float ToFloat(float x) { return x; }
inline __attribute__((always_inline)) float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even. The quiet NaN of the processor stays one.
template <typename Real>
inline __attribute__((always_inline)) Real FromFloat(float x);
template <>
inline __attribute__((always_inline)) float FromFloat<float>(float x) {
  return x;
}
template <>
inline __attribute__((always_inline)) Bf16 FromFloat<Bf16>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

}  // namespace espalier::cpu
