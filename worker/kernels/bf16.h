// Bf16: a bfloat16 number as kernels see it, without LibTorch; the bits are c10::BFloat16's.
// Arithmetic is done in float. Used by cpu_rows.h, gemm.h and worker/ops/fused_tensor.h. Any
// thread.
#pragma once

#include <cstdint>

#include "common/base/bfloat16.h"

namespace espalier::cpu {

struct Bf16 {
  uint16_t bits;
};

inline __attribute__((always_inline)) float ToFloat(float x) { return x; }
inline __attribute__((always_inline)) float ToFloat(Bf16 x) { return FromBfloat16(x.bits); }

// Rounds as common/base/bfloat16.h says.
template <typename Real>
inline __attribute__((always_inline)) Real FromFloat(float x);
template <>
inline __attribute__((always_inline)) float FromFloat<float>(float x) {
  return x;
}
template <>
inline __attribute__((always_inline)) Bf16 FromFloat<Bf16>(float x) {
  return {ToBfloat16(x)};
}

}  // namespace espalier::cpu
