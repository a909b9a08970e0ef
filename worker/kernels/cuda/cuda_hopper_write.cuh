// From the sums of a warp group to memory on Hopper: rounded to 16 bits, gated or not, through
// shared memory by memory's own engine. Device code. Used by cuda_hopper_product_kernels.cu.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "worker/kernels/cuda/cuda_hopper.cuh"
#include "worker/kernels/cuda/cuda_hopper_multiply.cuh"

namespace espalier::cuda::hopper {

constexpr int kRows = 128, kColumns = kProductColumns / 2;  // written at once
constexpr int kHalves = kRows / kProductRows;
constexpr int kGroupThreads = 128;
// Of what is written: rows of 64 bytes, whose 16-byte parts are swapped as 64-byte swizzling says.
constexpr int kOutColumns = 32, kOutRowBytes = 2 * kOutColumns;

template <typename T>
using Out = T[kColumns / kOutColumns][kRows * kOutColumns];

using Sums = float[kHalves][kProductSums];  // of each half those of both 96 rows of weights
constexpr int kSecond = kProductSums / 2;   // where the second begin

template <typename T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  using Two = __nv_bfloat162;
  static __device__ Two Of(float a, float b) { return __floats2bfloat162_rn(a, b); }
  static __device__ float2 Floats(Two x) { return __bfloat1622float2(x); }
};
template <>
struct Pair<__half> {
  using Two = __half2;
  static __device__ Two Of(float a, float b) { return __floats2half2_rn(a, b); }
  static __device__ float2 Floats(Two x) { return __half22float2(x); }
};

inline __device__ float Silu(float x) { return x * __fdividef(1.0F, 1.0F + __expf(-x)); }

template <typename T>
__device__ uint32_t Rounded(float a, float b) {
  const auto two = Pair<T>::Of(a, b);
  return reinterpret_cast<const uint32_t&>(two);
}
// Two numbers of y from those of its products, as they are, or would be, in memory.
template <typename T>
__device__ uint32_t Gated(uint32_t gate, uint32_t up) {
  using Two = typename Pair<T>::Two;
  const float2 g = Pair<T>::Floats(reinterpret_cast<const Two&>(gate));
  const float2 u = Pair<T>::Floats(reinterpret_cast<const Two&>(up));
  return Rounded<T>(Silu(g.x) * u.x, Silu(g.y) * u.y);
}

// What a warp group writes: a tile, whose numbers 2 i and 2 i + 1 of a half part(half, i) makes.
// Inlined, so that sums stay in registers.
template <typename T, typename Part>
__device__ __forceinline__ void Write(const CUtensorMap& map, int row, int column, int group,
                                      Out<T>& out, Part part) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % 32;
  const int matrix = lane / 8, line = thread / 32 * 16 + matrix % 2 * 8 + lane % 8;
  if (thread == 0) AwaitPuts();
  SyncWarpGroup(1 + group);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const uint32_t begin = (half * kProductRows + line) * kOutRowBytes;
#pragma unroll
    for (int block = 0; block < kColumns / 8; block += 2) {
      const int i = 2 * block;
      const uint32_t parts[4] = {part(half, i), part(half, i + 1), part(half, i + 2),
                                 part(half, i + 3)};
      const int of_row = block % 4 + matrix / 2;  // in parts of 16 bytes
      StoreMatrices(SharedAddress(out[block / 4]) + begin + ((of_row ^ (line / 2 % 4)) * 16),
                    parts);
    }
  }
  FinishWriting();
  SyncWarpGroup(1 + group);
  if (thread != 0) return;
#pragma unroll
  for (int i = 0; i < kColumns / kOutColumns; ++i) {
    Put(map, row, column + i * kOutColumns, out[i]);
  }
  EndPuts();
}

// Rounds sums where they are: a pair of the first rows' becomes number i of its half, one of the
// second's number kSecond + i. Elsewhere, they would not fit into registers.
template <typename T>
__device__ __forceinline__ void RoundInPlace(Sums& sums) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int i = 0; i < kSecond / 2; ++i) {
      float* const first = sums[half];
      float* const second = first + kSecond;
      first[i] = __uint_as_float(Rounded<T>(first[2 * i], first[2 * i + 1]));
      second[i] = __uint_as_float(Rounded<T>(second[2 * i], second[2 * i + 1]));
    }
  }
}

}  // namespace espalier::cuda::hopper
