// The optimizer's kernels, compiled without contraction: see adamw_math.h.
#include <cstdint>
#include <type_traits>

#include "worker/kernels/adam_atan2_math.h"
#include "worker/kernels/adamw_math.h"
#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

template <typename T>
__global__ void AdamWKernel(int64_t elements, AdamWStep f, float* value, float* gradient,
                            float* first, float* second, T* copy) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= elements) return;
  AdamElement(f, gradient[i], first[i], second[i], value[i]);
  gradient[i] = 0;
  if (copy != nullptr) copy[i] = FromFloat<T>(value[i]);
}

// The same for memory that is aligned to packs.
template <typename T>
__global__ void AdamWPackKernel(int64_t packs, AdamWStep f, float* value, float* gradient,
                                float* first, float* second, T* copy) {
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kPack;
  if (i >= packs * kPack) return;
  float g[kPack], m[kPack], v[kPack], p[kPack];
  Load(gradient + i, g);
  Load(first + i, m);
  Load(second + i, v);
  Load(value + i, p);
#pragma unroll
  for (int j = 0; j < kPack; ++j) AdamElement(f, g[j], m[j], v[j], p[j]);
  const float zero[kPack] = {};
  Store(m, first + i);
  Store(v, second + i);
  Store(p, value + i);
  Store(zero, gradient + i);
  if (copy != nullptr) Store(p, copy + i);
}

// A block of threads for each block of moments.
template <typename T>
__global__ void AdamW8Kernel(int64_t elements, AdamWStep f, float* value, float* gradient,
                             Moments8 moments, RandomPlace random, T* copy) {
  const int64_t i = blockIdx.x * moment8::kBlock + threadIdx.x;
  const bool mine = i < elements;
  float& first_unit = moments.first_unit[blockIdx.x];
  float& second_unit = moments.second_unit[blockIdx.x];
  float m = 0, v = 0;
  if (mine) {
    m = moment8::DecodeFirst(moments.first[i], first_unit);
    v = moment8::DecodeSecond(moments.second[i], second_unit);
    AdamElement(f, gradient[i], m, v, value[i]);
    gradient[i] = 0;
    if (copy != nullptr) copy[i] = FromFloat<T>(value[i]);
  }
  const float most_m = Reduce<true>(fabsf(m)), most_v = Reduce<true>(v);
  const float unit_m = moment8::FirstUnit(most_m);
  const float unit_v = moment8::SecondUnit(most_v);
  if (mine) {
    const uint32_t bits =
        moment8::RandomBits(random.key, random.first_element + static_cast<uint32_t>(i));
    moments.first[i] = moment8::EncodeFirst(m, 1 / unit_m, moment8::LowRandom(bits));
    moments.second[i] = moment8::EncodeSecond(v, 1 / unit_v, moment8::HighRandom(bits));
  }
  if (threadIdx.x > 0) return;  // all have read them before they reduced
  first_unit = unit_m;
  second_unit = unit_v;
}

template <typename T>
bool Aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (sizeof(T) * kPack) == 0;
}

}  // namespace

void AdamW(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
           float* first, float* second, void* copy, Stream stream) {
  if (elements == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    T* narrow = static_cast<T*>(copy);
    const bool aligned =
        Aligned(value) && Aligned(gradient) && Aligned(first) && Aligned(second) && Aligned(narrow);
    const int64_t packs = aligned ? elements / kPack : 0, rest = elements - packs * kPack;
    if (packs > 0) {
      AdamWPackKernel<T><<<Blocks(packs * kPack), kThreads, 0, Of(stream)>>>(
          packs, step, value, gradient, first, second, narrow);
    }
    if (rest == 0) return;
    const int64_t at = packs * kPack;
    AdamWKernel<T><<<(rest + kThreads - 1) / kThreads, kThreads, 0, Of(stream)>>>(
        rest, step, value + at, gradient + at, first + at, second + at,
        narrow == nullptr ? narrow : narrow + at);
  });
}

void AdamW8(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
            const Moments8& moments, const RandomPlace& random, void* copy, Stream stream) {
  if (elements == 0) return;
  static_assert(kThreads == moment8::kBlock);
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    AdamW8Kernel<T><<<(elements + kThreads - 1) / kThreads, kThreads, 0, Of(stream)>>>(
        elements, step, value, gradient, moments, random, static_cast<T*>(copy));
  });
}

}  // namespace espalier::cuda
