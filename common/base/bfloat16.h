// bfloat16: the upper half of a float, which rounds to it. The one place that says how: all that
// stores or sends such numbers converts with these, so that all agree to the bit.
// Used by worker/collective/wire.cc and worker/kernels/bf16.h; no dependencies.
// Plain functions, inlined everywhere so that loops over them vectorise: any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace espalier {

inline __attribute__((always_inline)) float FromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The bits of the nearest number, of two equally near ones the even; what is too large becomes
// infinite. NaN stays NaN, made quiet, with its sign and upper payload: its lower bits could carry
// into the sign when rounded, or be all there is of it when cut off. What is added is chosen, not
// the sum: loops of this form are the fastest of those tried with GCC.
inline __attribute__((always_inline)) uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool nan = value != value;
  const uint32_t added = nan ? 0x400000U & ~bits : 0x7fffU + ((bits >> 16) & 1U);
  return static_cast<uint16_t>((bits + added) >> 16);
}

}  // namespace espalier
