#include "worker/model/cuda_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

namespace espalier::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;  // numbers that a thread moves at once
constexpr int kWarp = 32;
// Blocks of RmsNormBackward of kThreads each; fixed, since the sums depend on it.
constexpr int64_t kFullNormBlocks = 528;

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float ToFloat(__half x) { return __half2float(x); }
template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ __half FromFloat<__half>(float x) {
  return __float2half(x);
}

template <typename T>
struct alignas(sizeof(T) * kPack) Pack {
  T at[kPack];
};

template <typename T>
__device__ void Load(const T* from, float (&to)[kPack]) {
  const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(from);
#pragma unroll
  for (int i = 0; i < kPack; ++i) to[i] = ToFloat(pack.at[i]);
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

// A block works on a row whose numbers stay in registers: thread t holds the packs t, t + threads,
// ... of kSlots rounds.
template <int kSlots, typename In, typename Out>
__global__ void RmsNormKernel(int64_t columns, const In* x, const float* weight, float eps, Out* y,
                              float* inverse) {
  const In* row = x + blockIdx.x * columns;
  Out* out = y + blockIdx.x * columns;
  float v[kSlots][kPack];
  float sum = 0;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int64_t c = (threadIdx.x + slot * blockDim.x) * kPack;
    if (c >= columns) break;
    Load(row + c, v[slot]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += v[slot][i] * v[slot][i];
  }
  const float r = rsqrtf(Reduce(sum) / static_cast<float>(columns) + eps);
  if (threadIdx.x == 0) inverse[blockIdx.x] = r;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int64_t c = (threadIdx.x + slot * blockDim.x) * kPack;
    if (c >= columns) break;
    float w[kPack];
    Load(weight + c, w);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[slot][i] *= r * w[i];
    Store(v[slot], out + c);
  }
}

// A block takes every gridDim-th row and keeps its part of the weight's gradient in registers too.
// With g = dy * weight: dx = r g - x r^3 mean(g x); dweight = sum of dy x r.
template <int kSlots, typename In, typename Out>
__global__ void RmsNormBackwardKernel(int64_t rows, int64_t columns, const In* x,
                                      const float* weight, const float* inverse, const Out* dy,
                                      const In* other, In* dx, float* partial) {
  float sums[kSlots][kPack] = {}, w[kSlots][kPack];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int64_t c = (threadIdx.x + slot * blockDim.x) * kPack;
    if (c < columns) Load(weight + c, w[slot]);
  }
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t begin = row * columns;
    float v[kSlots][kPack], g[kSlots][kPack], o[kSlots][kPack] = {};
    float dot = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t c = (threadIdx.x + slot * blockDim.x) * kPack;
      if (c >= columns) break;
      Load(x + begin + c, v[slot]);
      Load(dy + begin + c, g[slot]);
      if (other != nullptr) Load(other + begin + c, o[slot]);  // before the reduction waits
#pragma unroll
      for (int i = 0; i < kPack; ++i) dot += g[slot][i] * w[slot][i] * v[slot][i];
    }
    const float r = inverse[row];
    const float pull = Reduce(dot) * r * r * r / static_cast<float>(columns);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t c = (threadIdx.x + slot * blockDim.x) * kPack;
      if (c >= columns) break;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        sums[slot][i] += g[slot][i] * v[slot][i] * r;
        o[slot][i] += r * g[slot][i] * w[slot][i] - v[slot][i] * pull;
      }
      Store(o[slot], dx + begin + c);
    }
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int64_t c = (threadIdx.x + slot * blockDim.x) * kPack;
    if (c < columns) Store(sums[slot], partial + blockIdx.x * columns + c);
  }
}

__device__ float Sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

template <typename T>
__global__ void SwiGluKernel(int64_t elements, const T* gate, const T* up, T* y) {
  const int64_t at = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kPack;
  if (at >= elements) return;
  float g[kPack], u[kPack];
  Load(gate + at, g);
  Load(up + at, u);
#pragma unroll
  for (int i = 0; i < kPack; ++i) g[i] = g[i] * Sigmoid(g[i]) * u[i];
  Store(g, y + at);
}

template <typename T>
__global__ void SwiGluBackwardKernel(int64_t elements, const T* gate, const T* up, T* dy,
                                     T* dgate) {
  const int64_t at = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kPack;
  if (at >= elements) return;
  float g[kPack], u[kPack], d[kPack];
  Load(gate + at, g);
  Load(up + at, u);
  Load(dy + at, d);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float s = Sigmoid(g[i]);
    u[i] = d[i] * u[i] * s * (1.0F + g[i] * (1.0F - s));
    d[i] = d[i] * g[i] * s;
  }
  Store(u, dgate + at);
  Store(d, dy + at);
}

template <typename T>
__global__ void RopeKernel(RopeShape shape, const T* x, const float* cosine, const float* sine,
                           float sign, T* y) {
  const int64_t index = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kPack;
  const int64_t width = shape.heads * shape.half;
  if (index >= shape.rows * width) return;
  const int64_t row = index / width, head = index % width / shape.half, i = index % shape.half;
  const int64_t at = (row * shape.heads + head) * 2 * shape.half + i;
  const int64_t angle = row % shape.time * shape.half + i;
  float a[kPack], b[kPack], c[kPack], s[kPack], first[kPack], second[kPack];
  Load(x + at, a);
  Load(x + at + shape.half, b);
  Load(cosine + angle, c);
  Load(sine + angle, s);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    first[j] = a[j] * c[j] - b[j] * s[j] * sign;
    second[j] = b[j] * c[j] + a[j] * s[j] * sign;
  }
  Store(first, y + at);
  Store(second, y + at + shape.half);
}

constexpr int kLossThreads = 1024;

template <typename T>
__global__ void CrossEntropyKernel(int64_t columns, T* logits, const int64_t* targets,
                                   float* losses) {
  T* row = logits + blockIdx.x * columns;
  const int64_t target = targets[blockIdx.x];
  const float logit = target < 0 ? 0.0F : ToFloat(row[target]);
  // One reading: a running maximum and the sum relative to it.
  float most = -INFINITY, sum = 0;
  for (int64_t c = threadIdx.x * kPack; c < columns; c += kLossThreads * kPack) {
    float v[kPack];
    Load(row + c, v);
    const float larger = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
    if (larger > most) {
      sum *= __expf(most - larger);
      most = larger;
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += __expf(v[i] - most);
  }
  const float maximum = Reduce<true>(most);
  const float total = Reduce(most == -INFINITY ? 0.0F : sum * __expf(most - maximum));
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0F : logf(total) + maximum - logit;
  const float factor = target < 0 ? 0.0F : 1.0F / total;
  for (int64_t c = threadIdx.x * kPack; c < columns; c += kLossThreads * kPack) {
    float v[kPack];
    Load(row + c, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      v[i] = target < 0 ? 0.0F : __expf(v[i] - maximum) * factor - (c + i == target ? 1.0F : 0.0F);
    }
    Store(v, row + c);
  }
}

template <typename T>
__global__ void AdamWKernel(int64_t elements, AdamWStep f, float* value, float* gradient,
                            float* first, float* second, T* copy) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= elements) return;
  const float g = gradient[i] * f.gradient_scale;
  const float m = f.beta1 * first[i] + (1 - f.beta1) * g;
  const float v = f.beta2 * second[i] + (1 - f.beta2) * g * g;
  const float p = value[i] * f.keep - f.step_size * m / (sqrtf(v) * f.second_root + f.eps);
  first[i] = m;
  second[i] = v;
  value[i] = p;
  gradient[i] = 0;
  if (copy != nullptr) copy[i] = FromFloat<T>(p);
}

unsigned Blocks(int64_t elements) {
  return static_cast<unsigned>((elements + kThreads * kPack - 1) / (kThreads * kPack));
}

// Calls body with a null pointer of the type's C++ type.
template <typename Body>
void WithType(Type type, Body&& body) {
  if (type == Type::kFloat) body(static_cast<float*>(nullptr));
  if (type == Type::kBf16) body(static_cast<__nv_bfloat16*>(nullptr));
  if (type == Type::kHalf) body(static_cast<__half*>(nullptr));
}

// Threads of a block that works on rows, and rounds in which they read one.
struct RowThreads {
  explicit RowThreads(int64_t columns)
      : threads(static_cast<unsigned>(
            std::min<int64_t>(kThreads, (columns / kPack + kWarp - 1) / kWarp * kWarp))),
        slots((columns + threads * kPack - 1) / (threads * kPack)) {}
  unsigned threads;
  int64_t slots;
};

// Calls body with null pointers of the types' C++ types and the number of rounds, as a type.
template <typename Body>
void WithNorm(NormTypes types, const RowThreads& row, Body&& body) {
  WithType(types.out, [&](auto* out) {
    const auto with_slots = [&](auto* in) {
      if (row.slots <= 1) return body(in, out, std::integral_constant<int, 1>());
      if (row.slots <= 2) return body(in, out, std::integral_constant<int, 2>());
      if (row.slots <= 4) return body(in, out, std::integral_constant<int, 4>());
      return body(in, out, std::integral_constant<int, 8>());
    };
    types.in == Type::kFloat ? with_slots(static_cast<float*>(nullptr)) : with_slots(out);
  });
}

cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

int64_t NormBlocks(int64_t columns) {
  return kFullNormBlocks * kThreads / RowThreads(columns).threads;
}

void RmsNorm(NormTypes types, const RowShape& shape, const void* x, const float* weight, float eps,
             void* y, float* inverse, Stream stream) {
  if (shape.rows == 0) return;
  const RowThreads row(shape.columns);
  WithNorm(types, row, [&](auto* in, auto* out, auto slots) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    RmsNormKernel<slots.value><<<shape.rows, row.threads, 0, Of(stream)>>>(
        shape.columns, static_cast<const In*>(x), weight, eps, static_cast<Out*>(y), inverse);
  });
}

void RmsNormBackward(NormTypes types, const RowShape& shape, const void* x, const float* weight,
                     const float* inverse, const void* dy, const void* other, void* dx,
                     float* partial, Stream stream) {
  const RowThreads row(shape.columns);
  WithNorm(types, row, [&](auto* in, auto* out, auto slots) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    RmsNormBackwardKernel<slots.value><<<NormBlocks(shape.columns), row.threads, 0, Of(stream)>>>(
        shape.rows, shape.columns, static_cast<const In*>(x), weight, inverse,
        static_cast<const Out*>(dy), static_cast<const In*>(other), static_cast<In*>(dx), partial);
  });
}

void SwiGlu(Type type, int64_t elements, const void* gate, const void* up, void* y, Stream stream) {
  if (elements == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    SwiGluKernel<T><<<Blocks(elements), kThreads, 0, Of(stream)>>>(
        elements, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(y));
  });
}

void SwiGluBackward(Type type, int64_t elements, const void* gate, const void* up, void* dy,
                    void* dgate, Stream stream) {
  if (elements == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    SwiGluBackwardKernel<T><<<Blocks(elements), kThreads, 0, Of(stream)>>>(
        elements, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(dy),
        static_cast<T*>(dgate));
  });
}

void Rope(Type type, const RopeShape& shape, const void* x, const float* cosine, const float* sine,
          float sign, void* y, Stream stream) {
  const int64_t elements = shape.rows * shape.heads * shape.half;
  if (elements == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    RopeKernel<T><<<Blocks(elements), kThreads, 0, Of(stream)>>>(
        shape, static_cast<const T*>(x), cosine, sine, sign, static_cast<T*>(y));
  });
}

void CrossEntropy(Type type, const RowShape& shape, void* logits, const int64_t* targets,
                  float* losses, Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    CrossEntropyKernel<T><<<shape.rows, kLossThreads, 0, Of(stream)>>>(
        shape.columns, static_cast<T*>(logits), targets, losses);
  });
}

void AdamW(Type type, int64_t elements, const AdamWStep& step, float* value, float* gradient,
           float* first, float* second, void* copy, Stream stream) {
  if (elements == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    AdamWKernel<T><<<(elements + kThreads - 1) / kThreads, kThreads, 0, Of(stream)>>>(
        elements, step, value, gradient, first, second, static_cast<T*>(copy));
  });
}

}  // namespace espalier::cuda
