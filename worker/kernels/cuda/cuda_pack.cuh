// What the kernels share: numbers moved in packs and computed with as fp32, sums over a block, and
// the choice of a type. Included by cuda_*.cu of this folder alone. Used by cuda_adamw_kernels.cu,
// cuda_row_kernels.cu and cuda_norm_kernels.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

constexpr int kThreads = 256;
constexpr int kPack = 4;  // numbers that a thread moves at once

inline __device__ float ToFloat(float x) { return x; }
inline __device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
inline __device__ float ToFloat(__half x) { return __half2float(x); }
template <typename T>
__device__ T FromFloat(float x);
template <>
inline __device__ float FromFloat<float>(float x) {
  return x;
}
template <>
inline __device__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
template <>
inline __device__ __half FromFloat<__half>(float x) {
  return __float2half(x);
}

template <typename T>
struct alignas(sizeof(T) * kPack) Pack {
  T at[kPack];
};

template <typename T>
__device__ void Unpack(const Pack<T>& from, float (&to)[kPack]) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) to[i] = ToFloat(from.at[i]);
}

template <typename T>
__device__ Pack<T> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}

template <typename T>
__device__ void Load(const T* from, float (&to)[kPack]) {
  Unpack(LoadPack(from), to);
}

template <typename T>
__device__ void Store(const float (&from)[kPack], T* to) {
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) pack.at[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

// The sum, or maximum, over all threads of the block, for every thread.
template <bool kMaximum = false>
__device__ float Reduce(float value) {
  __shared__ float parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0U, value, offset);
    value = kMaximum ? fmaxf(value, other) : value + other;
  }
  __syncthreads();  // a former reduction may still be reading
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < warps; ++i) value = kMaximum ? fmaxf(value, parts[i]) : value + parts[i];
  return value;
}

// Calls body with a null pointer of the type's C++ type.
template <typename Body>
void WithType(Type type, Body&& body) {
  if (type == Type::kFloat) body(static_cast<float*>(nullptr));
  if (type == Type::kBf16) body(static_cast<__nv_bfloat16*>(nullptr));
  if (type == Type::kHalf) body(static_cast<__half*>(nullptr));
}

// Blocks of threads for so many numbers, moved in packs.
inline unsigned Blocks(int64_t elements) {
  return static_cast<unsigned>((elements + kThreads * kPack - 1) / (kThreads * kPack));
}

inline cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace espalier::cuda
