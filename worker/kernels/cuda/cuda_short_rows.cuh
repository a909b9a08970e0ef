// How rows of a short sequence's head are multiplied in shared memory, and leave it. Included by
// cuda_*.cu of this folder alone. Used by cuda_short_attention_kernels.cu and
// cuda_short_attention_backward_kernels.cu.
#pragma once

#include "worker/kernels/cuda/cuda_matrix_units.cuh"
#include "worker/kernels/cuda/cuda_short_loads.cuh"

namespace espalier::cuda {

// A tile's rows [16, 64], rounded, as a thread has them.
using NarrowRows = uint32_t[kTiles][2];
template <typename T>
__device__ void Narrow(const float (&rows)[kTiles][4], NarrowRows& to) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) to[n][i] = Packed<T>(rows[n][2 * i], rows[n][2 * i + 1]);
  }
}

// They go to shared memory of the warp's own, [16, kStride].
template <typename T>
__device__ void StageRows(const NarrowRows& rows, T* staged) {
  const int lane = threadIdx.x % 32;
  __syncwarp();  // what was there may still be read
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    T* at = staged + lane / 4 * kStride + n * 8 + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(at) = rows[n][0];
    *reinterpret_cast<uint32_t*>(at + 8 * kStride) = rows[n][1];
  }
  __syncwarp();
}

// Writes a tile's rows, as they were staged, to the positions from `first` on.
template <typename T>
__device__ void StoreStaged(const T* staged, int first, int time, T* to, int row_step) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8, c = lane % 8 * 8;
    if (first + row >= time) continue;
    *reinterpret_cast<Words*>(to + ((first + row) * row_step + c)) =
        LoadWords(staged + row * kStride + c);
  }
}

// Rows 16 positions wide, of two tiles of a result, as a left factor.
template <typename T>
__device__ void AsLeft(const float (&first)[4], const float (&second)[4], uint32_t (&to)[4]) {
  to[0] = Packed<T>(first[0], first[1]);
  to[1] = Packed<T>(first[2], first[3]);
  to[2] = Packed<T>(second[0], second[1]);
  to[3] = Packed<T>(second[2], second[3]);
}

// to += left times rows [16, 64] of x, for both tiles of a warp.
template <typename T>
__device__ void MultiplyRows(const uint32_t (&left)[2][4], const T* x, float (&to)[2][kTiles][4]) {
  uint32_t right[2][4];
  LoadRightOfColumns(x, kStride, right[0]);
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i) {
    if (i + 1 < kTiles / 2) LoadRightOfColumns(x + (i + 1) * 16, kStride, right[(i + 1) % 2]);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      MultiplyAdd<T>(left[m], right[i % 2], to[m][2 * i]);
      MultiplyAdd<T>(left[m], right[i % 2] + 2, to[m][2 * i + 1]);
    }
  }
}

}  // namespace espalier::cuda
