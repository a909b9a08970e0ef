#include <cstdint>
#include <type_traits>

#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

__device__ float Sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

// A block takes a part of one row, so that no thread divides.
template <typename T>
__global__ void SwiGluKernel(int64_t columns, const T* gate, const T* up, int64_t stride, T* y) {
  const int64_t c = (blockIdx.y * kThreads + threadIdx.x) * kPack, row = blockIdx.x;
  if (c >= columns) return;
  float g[kPack], u[kPack];
  Load(gate + row * stride + c, g);
  Load(up + row * stride + c, u);
#pragma unroll
  for (int i = 0; i < kPack; ++i) g[i] = g[i] * Sigmoid(g[i]) * u[i];
  Store(g, y + row * columns + c);
}

template <typename T>
__global__ void SwiGluBackwardKernel(int64_t columns, const T* gate, const T* up, int64_t stride,
                                     T* dgate, T* dup, int64_t dstride) {
  const int64_t c = (blockIdx.y * kThreads + threadIdx.x) * kPack, row = blockIdx.x;
  if (c >= columns) return;
  float g[kPack], u[kPack], d[kPack];
  Load(gate + row * stride + c, g);
  Load(up + row * stride + c, u);
  Load(dup + row * dstride + c, d);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float s = Sigmoid(g[i]);
    u[i] = d[i] * u[i] * s * (1.0F + g[i] * (1.0F - s));
    d[i] = d[i] * g[i] * s;
  }
  Store(u, dgate + row * dstride + c);
  Store(d, dup + row * dstride + c);
}

template <typename T>
__global__ void RopeKernel(RopeShape shape, const T* x, const float* cosine, const float* sine,
                           float sign, T* y) {
  const int64_t index = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kPack;
  const int64_t width = shape.heads * shape.half;
  if (index >= shape.rows * width) return;
  const int64_t row = index / width, head = index % width / shape.half, i = index % shape.half;
  const int64_t at = head * 2 * shape.half + i;
  const T* from = x + row * shape.from_stride + at;
  T* to = y + row * shape.to_stride + at;
  const int64_t angle = row % shape.time * shape.half + i;
  float a[kPack], b[kPack], c[kPack], s[kPack], first[kPack], second[kPack];
  Load(from, a);
  Load(from + shape.half, b);
  Load(cosine + angle, c);
  Load(sine + angle, s);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    first[j] = a[j] * c[j] - b[j] * s[j] * sign;
    second[j] = b[j] * c[j] + a[j] * s[j] * sign;
  }
  Store(first, to);
  Store(second, to + shape.half);
}

constexpr int kLossThreads = 1024;

template <typename T>
__global__ void CrossEntropyKernel(int64_t columns, T* logits, const int64_t* targets,
                                   const float* weights, float* losses) {
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
  const float weight = weights == nullptr ? 1.0F : weights[blockIdx.x];
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = target < 0 ? 0.0F : weight * (logf(total) + maximum - logit);
  }
  const float factor = target < 0 ? 0.0F : weight / total;
  for (int64_t c = threadIdx.x * kPack; c < columns; c += kLossThreads * kPack) {
    float v[kPack];
    Load(row + c, v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      v[i] =
          target < 0 ? 0.0F : __expf(v[i] - maximum) * factor - (c + i == target ? weight : 0.0F);
    }
    Store(v, row + c);
  }
}

}  // namespace

void SwiGlu(Type type, const RowShape& shape, const GateUp<const void*>& x, void* y,
            Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    SwiGluKernel<T><<<dim3(shape.rows, Blocks(shape.columns)), kThreads, 0, Of(stream)>>>(
        shape.columns, static_cast<const T*>(x.gate), static_cast<const T*>(x.up), x.stride,
        static_cast<T*>(y));
  });
}

void SwiGluBackward(Type type, const RowShape& shape, const GateUp<const void*>& x,
                    const GateUp<void*>& dx, Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    SwiGluBackwardKernel<T><<<dim3(shape.rows, Blocks(shape.columns)), kThreads, 0, Of(stream)>>>(
        shape.columns, static_cast<const T*>(x.gate), static_cast<const T*>(x.up), x.stride,
        static_cast<T*>(dx.gate), static_cast<T*>(dx.up), dx.stride);
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
                  const float* weights, float* losses, Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    CrossEntropyKernel<T><<<shape.rows, kLossThreads, 0, Of(stream)>>>(
        shape.columns, static_cast<T*>(logits), targets, weights, losses);
  });
}

}  // namespace espalier::cuda
