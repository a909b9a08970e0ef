// How rows of a short sequence's head get into shared memory and back, and are multiplied there.
// Included by cuda_*.cu of this folder alone. Used by cuda_short_attention_kernels.cu and
// cuda_short_attention_backward_kernels.cu.
#pragma once

#include "worker/kernels/cuda/cuda_matrix_units.cuh"
#include "worker/kernels/cuda/cuda_short_heads.cuh"

namespace espalier::cuda {

template <typename T>
__device__ void Turn(float (&a)[8], float (&b)[8], const float (&c)[8], const float (&s)[8],
                     T* to) {
  float first[8], second[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    first[i] = a[i] * c[i] - b[i] * s[i];
    second[i] = b[i] * c[i] + a[i] * s[i];
  }
  Store(first, to);
  Store(second, to + kHalf);
}

// q and k of all positions, turned, zeros behind the last one; kAtOnce of the two rounds together.
template <int kWarps, int kAtOnce, typename T>
__device__ void LoadTurned(const HeadArguments<T>& f, T* q, T* k) {
  const int64_t at = f.At(f.shape.row);
#pragma unroll(kAtOnce)
  for (int i = 0; i < 2; ++i) {
    const int place = threadIdx.x + i * kWarps * 32, row = place / 4, c = place % 4 * 8;
    float qa[8] = {}, qb[8] = {}, ka[8] = {}, kb[8] = {}, cosine[8], sine[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) cosine[j] = 1, sine[j] = 0;
    if (row < f.shape.time) {
      const int64_t from = at + row * f.shape.row + c;
      Load(f.q + from, qa);
      Load(f.q + from + kHalf, qb);
      Load(f.k + from, ka);
      Load(f.k + from + kHalf, kb);
      if (f.cosine != nullptr) {
        Load(f.cosine + row * kHalf + c, cosine);
        Load(f.sine + row * kHalf + c, sine);
      }
    }
    Turn(qa, qb, cosine, sine, q + row * kStride + c);
    Turn(ka, kb, cosine, sine, k + row * kStride + c);
  }
}

// A matrix of the head as it is, zeros behind the last position.
template <int kWarps, typename T>
__device__ void LoadPlain(const T* from, int64_t row_step, int64_t time, T* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int place = threadIdx.x + i * kWarps * 32, row = place / 8, c = place % 8 * 8;
    Pack<T, 8> pack;
#pragma unroll
    for (int j = 0; j < 8; ++j) pack.at[j] = FromFloat<T>(0);
    if (row < time) pack = LoadPack<8>(from + row * row_step + c);
    *reinterpret_cast<Pack<T, 8>*>(to + row * kStride + c) = pack;
  }
}

// Writes a warp's rows [16, 64] through `staged`, shared memory of its own for them.
template <typename T>
__device__ void StoreRows(const float (&rows)[kTiles][4], T* staged, int first, int64_t time, T* to,
                          int64_t row_step) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    T* at = staged + lane / 4 * kStride + n * 8 + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(at) = Packed<T>(rows[n][0], rows[n][1]);
    *reinterpret_cast<uint32_t*>(at + 8 * kStride) = Packed<T>(rows[n][2], rows[n][3]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8, c = lane % 8 * 8;
    if (first + row >= time) continue;
    *reinterpret_cast<Pack<T, 8>*>(to + (first + row) * row_step + c) =
        LoadPack<8>(staged + row * kStride + c);
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

// to += left times rows [16, 64] of x.
template <typename T>
__device__ void MultiplyRows(const uint32_t (&left)[4], const T* x, float (&to)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t right[4];
    LoadRightOfColumns(x + n * 8, kStride, right);
    MultiplyAdd<T>(left, right, to[n]);
    MultiplyAdd<T>(left, right + 2, to[n + 1]);
  }
}

}  // namespace espalier::cuda
