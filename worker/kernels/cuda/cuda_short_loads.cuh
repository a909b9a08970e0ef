// How rows of a short sequence's head get into shared memory: q and k turned by the angles of their
// positions, the others as they are. Included by cuda_*.cu of this folder alone. Used by
// cuda_short_rows.cuh.
#pragma once

#include "worker/kernels/cuda/cuda_matrix_units.cuh"
#include "worker/kernels/cuda/cuda_short_heads.cuh"

namespace espalier::cuda {

// 16 bytes into shared memory, on their way until WaitForPlain.
inline __device__ void CopyPlain(const void* from, void* to) {
#ifdef ESPALIER_HAS_MATRIX_UNITS
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(address), "l"(from) : "memory");
#endif
}
inline __device__ void WaitForPlain() {
#ifdef ESPALIER_HAS_MATRIX_UNITS
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

// 16 bytes of a row.
struct alignas(16) Words {
  uint32_t at[4];
};
template <typename T>
__device__ Words LoadWords(const T* from) {
  return *reinterpret_cast<const Words*>(from);
}

// Where a thread of a round reads: 8 columns of one of 8 rows, and the same in the other half of
// the head. Eight threads in a row write all banks of shared memory.
inline __device__ int PairRow() { return threadIdx.x % 32 / 8 + threadIdx.x / 4 % 2 * 4; }
inline __device__ int PairColumn() { return threadIdx.x % 4 * 8; }

struct Angles {
  float cosine[8], sine[8];
};
template <typename T>
__device__ Angles LoadAngles(const HeadArguments<T>& f, int position) {
  Angles angles;
#pragma unroll
  for (int j = 0; j < 8; ++j) angles.cosine[j] = 1, angles.sine[j] = 0;
  if (f.cosine == nullptr) return angles;
  const int at = position * kHalf + PairColumn();
  Load(f.cosine + at, angles.cosine);
  Load(f.sine + at, angles.sine);
  return angles;
}

// 8 columns of a row, and those that are a half of the head further, turned, or, with kBack, turned
// the other way.
template <bool kBack, typename T>
__device__ void Turn(const Words& first, const Words& second, const Angles& by, T* to) {
  Words x, y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a[2], b[2], p[2], q[2];
    Unpacked<T>(first.at[i], a);
    Unpacked<T>(second.at[i], b);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float c = by.cosine[2 * i + j], s = kBack ? -by.sine[2 * i + j] : by.sine[2 * i + j];
      p[j] = a[j] * c - b[j] * s;
      q[j] = b[j] * c + a[j] * s;
    }
    x.at[i] = Packed<T>(p[0], p[1]);
    y.at[i] = Packed<T>(q[0], q[1]);
  }
  *reinterpret_cast<Words*>(to) = x;
  *reinterpret_cast<Words*>(to + kHalf) = y;
}

// q and k of all positions, turned; behind the last one, it again. All that a thread reads is on
// its way together.
template <int kWarps, typename T>
__device__ void LoadTurned(const HeadArguments<T>& f, T* q, T* k) {
  const int last = static_cast<int>(f.shape.time) - 1, step = static_cast<int>(f.shape.row);
  const int row = threadIdx.x / 32 * 8 + PairRow(), c = PairColumn();
  const int64_t at = f.At(f.shape.row) + c;
  Words parts[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = min(row + i * kWarps * 8, last) * step;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      parts[i][j] = LoadWords((j < 2 ? f.q : f.k) + at + from + j % 2 * kHalf);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int place = row + i * kWarps * 8, to = place * kStride + c;
    const Angles angles = LoadAngles(f, min(place, last));
    Turn<false>(parts[i][0], parts[i][1], angles, q + to);
    Turn<false>(parts[i][2], parts[i][3], angles, k + to);
  }
}

// A matrix of the head as it is; behind the last position, it again. It is there after WaitForPlain
// and a barrier.
template <int kWarps, typename T>
__device__ void LoadPlain(const T* from, int row_step, int time, T* to) {
  const int c = threadIdx.x % 8 * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = threadIdx.x / 8 + i * kWarps * 4;
    CopyPlain(from + (min(row, time - 1) * row_step + c), to + row * kStride + c);
  }
}

}  // namespace espalier::cuda
