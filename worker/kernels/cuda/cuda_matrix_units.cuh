// Products on the matrix units of one warp, of tiles in shared memory: 16 x 16 times 16 x 8 numbers
// of 16 bits, with fp32 sums. Fragments are laid over the 32 threads as PTX's mma.m16n8k16 says;
// thread t of a result has rows t / 4 and t / 4 + 8, columns t % 4 * 2 and the next. Nothing on
// devices before compute capability 8. Included by cuda_*.cu of this folder alone. Used by
// cuda_short_loads.cuh and cuda_short_rows.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace espalier::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define ESPALIER_HAS_MATRIX_UNITS 1
#endif

// Four tiles of 8 x 8, of which thread i gives the address of row i % 8 of tile i / 8.
template <bool kTransposed>
__device__ void LoadTiles(const void* row, uint32_t (&to)[4]) {
#ifdef ESPALIER_HAS_MATRIX_UNITS
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// The left factor [16, 16], whose rows follow each other by `stride`.
template <typename T>
__device__ void LoadLeft(const T* x, int stride, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % 32;
  LoadTiles<false>(x + lane % 16 * stride + lane / 16 * 8, to);
}

// The same where its columns follow each other by `stride`.
template <typename T>
__device__ void LoadLeftOfColumns(const T* x, int stride, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % 32;
  LoadTiles<true>(x + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8, to);
}

// Two right factors [16, 8] side by side, whose columns are rows of x, `stride` apart.
template <typename T>
__device__ void LoadRightOfRows(const T* x, int stride, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % 32;
  LoadTiles<false>(x + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8, to);
}

// The same where x has them as they are: rows [16] of 16 columns.
template <typename T>
__device__ void LoadRightOfColumns(const T* x, int stride, uint32_t (&to)[4]) {
  const int lane = threadIdx.x % 32;
  LoadTiles<true>(x + (lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 8, to);
}

// to += left right, of numbers of T.
template <typename T>
__device__ void MultiplyAdd(const uint32_t (&a)[4], const uint32_t* b, float (&to)[4]);

template <>
inline __device__ void MultiplyAdd<__nv_bfloat16>(const uint32_t (&a)[4], const uint32_t* b,
                                                  float (&to)[4]) {
#ifdef ESPALIER_HAS_MATRIX_UNITS
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(to[0]), "f"(to[1]),
        "f"(to[2]), "f"(to[3]));
#endif
}

template <>
inline __device__ void MultiplyAdd<__half>(const uint32_t (&a)[4], const uint32_t* b,
                                           float (&to)[4]) {
#ifdef ESPALIER_HAS_MATRIX_UNITS
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(to[0]), "f"(to[1]),
        "f"(to[2]), "f"(to[3]));
#endif
}

// Two neighbours of a row, rounded to T.
template <typename T>
__device__ uint32_t Packed(float first, float second);
template <>
inline __device__ uint32_t Packed<__nv_bfloat16>(float first, float second) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&both);
}
template <>
inline __device__ uint32_t Packed<__half>(float first, float second) {
  const __half2 both = __floats2half2_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// The two of Packed, in one register until then.
template <typename T>
__device__ void Unpacked(uint32_t both, float (&to)[2]);
template <>
inline __device__ void Unpacked<__nv_bfloat16>(uint32_t both, float (&to)[2]) {
  to[0] = __uint_as_float(both << 16);
  to[1] = __uint_as_float(both & 0xffff0000U);
}
template <>
inline __device__ void Unpacked<__half>(uint32_t both, float (&to)[2]) {
  asm("{.reg .f16 first, second; mov.b32 {first, second}, %2; cvt.f32.f16 %0, first; "
      "cvt.f32.f16 %1, second;}"
      : "=f"(to[0]), "=f"(to[1])
      : "r"(both));
}

// 2 to the power of x, to about 22 bits; 0 of -infinity.
inline __device__ float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Over the four threads that have a row of a result.
inline __device__ float MaximumOfFour(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}
inline __device__ float SumOfFour(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

}  // namespace espalier::cuda
