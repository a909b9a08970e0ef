// What the kernels share: numbers moved in packs and computed with as fp32, sums over a block, and
// the choice of a type. Included by cuda_*.cu of this folder alone. Used by cuda_adamw_kernels.cu,
// cuda_row_kernels.cu, cuda_norm_kernels.cu, cuda_one_row_kernels.cu, cuda_short_heads.cuh and
// cuda_kept_attention_kernels.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

constexpr int kThreads = 256;
constexpr int kPack = 4;  // numbers that a thread moves at once
// The same where rows and addresses allow the widest access there is, of 16 bytes.
template <typename T>
constexpr int kWidePack = 16 / sizeof(T);

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

template <typename T, int kCount = kPack>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

template <typename T, int kCount>
__device__ void Unpack(const Pack<T, kCount>& from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = ToFloat(from.at[i]);
}

template <int kCount = kPack, typename T>
__device__ Pack<T, kCount> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}

template <typename T, int kCount>
__device__ void Load(const T* from, float (&to)[kCount]) {
  Unpack(LoadPack<kCount>(from), to);
}

// Of floats beside packs of a narrower type: in accesses of 16 bytes.
template <int kCount>
__device__ void Load(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kPack) {
    const Pack<float> pack = LoadPack(from + begin);
#pragma unroll
    for (int i = 0; i < kPack; ++i) to[begin + i] = pack.at[i];
  }
}

template <typename T, int kCount>
__device__ void Store(const float (&from)[kCount], T* to) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.at[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
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

// Calls body with the numbers of T that a thread moves at once, as a constant: as many as 16 bytes
// hold, if lengths and steps (in numbers) and addresses are multiples of that.
template <typename T, typename Body>
void WithPack(std::initializer_list<int64_t> lengths, std::initializer_list<const void*> addresses,
              Body&& body) {
  bool wide = true;
  for (const int64_t length : lengths) wide = wide && length % kWidePack<T> == 0;
  for (const void* address : addresses) {
    wide = wide && reinterpret_cast<uintptr_t>(address) % sizeof(Pack<T, kWidePack<T>>) == 0;
  }
  if (wide) return body(std::integral_constant<int, kWidePack<T>>());
  body(std::integral_constant<int, kPack>());
}

// Blocks of threads for so many numbers, moved in packs.
inline unsigned Blocks(int64_t elements) {
  return static_cast<unsigned>((elements + kThreads * kPack - 1) / (kThreads * kPack));
}

inline cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace espalier::cuda
