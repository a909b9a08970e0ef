#include <cstdint>
#include <type_traits>

#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

__device__ float Sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

// A block takes a part of one row, so that no thread divides.
template <int kCount, typename T>
__global__ void SwiGluKernel(int64_t columns, const T* gate, const T* up, int64_t stride, T* y) {
  const int64_t c = (blockIdx.y * blockDim.x + threadIdx.x) * kCount, row = blockIdx.x;
  if (c >= columns) return;
  float g[kCount], u[kCount];
  Load(gate + row * stride + c, g);
  Load(up + row * stride + c, u);
#pragma unroll
  for (int i = 0; i < kCount; ++i) g[i] = g[i] * Sigmoid(g[i]) * u[i];
  Store(g, y + row * columns + c);
}

template <int kCount, typename T>
__global__ void SwiGluBackwardKernel(int64_t columns, const T* gate, const T* up, int64_t stride,
                                     T* dgate, T* dup, int64_t dstride) {
  const int64_t c = (blockIdx.y * blockDim.x + threadIdx.x) * kCount, row = blockIdx.x;
  if (c >= columns) return;
  float g[kCount], u[kCount], d[kCount];
  Load(gate + row * stride + c, g);
  Load(up + row * stride + c, u);
  Load(dup + row * dstride + c, d);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float s = Sigmoid(g[i]);
    u[i] = d[i] * u[i] * s * (1.0F + g[i] * (1.0F - s));
    d[i] = d[i] * g[i] * s;
  }
  Store(u, dgate + row * dstride + c);
  Store(d, dup + row * dstride + c);
}

// Where a row's packs are one block's or several's: nearly all threads have one.
struct RowGrid {
  RowGrid(const RowShape& shape, int pack) {
    constexpr int64_t kMost = 512, kWarp = 32;
    const int64_t packs = (shape.columns + pack - 1) / pack, parts = (packs + kMost - 1) / kMost;
    blocks = dim3(static_cast<unsigned>(shape.rows), static_cast<unsigned>(parts));
    threads = static_cast<unsigned>(((packs + parts - 1) / parts + kWarp - 1) / kWarp * kWarp);
  }
  dim3 blocks;
  unsigned threads;
};

// Packs of a call are fewer than 2^32: divisions of 64 bits took longer than the memory.
template <int kCount, typename T>
__global__ void RopeKernel(RopeShape shape, const T* x, const float* cosine, const float* sine,
                           float sign, T* y) {
  const unsigned pack = blockIdx.x * kThreads + threadIdx.x;
  const unsigned of_head = static_cast<unsigned>(shape.half) / kCount;
  const unsigned of_row = static_cast<unsigned>(shape.heads) * of_head;
  const unsigned row = pack / of_row, in_row = pack - row * of_row;
  if (row >= shape.rows) return;
  const unsigned head = in_row / of_head, i = (in_row - head * of_head) * kCount;
  const int64_t at = head * 2 * shape.half + i;
  const T* from = x + row * shape.from_stride + at;
  T* to = y + row * shape.to_stride + at;
  const int64_t angle = row % static_cast<unsigned>(shape.time) * shape.half + i;
  float a[kCount], b[kCount], c[kCount], s[kCount], first[kCount], second[kCount];
  Load(from, a);
  Load(from + shape.half, b);
  Load(cosine + angle, c);
  Load(sine + angle, s);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    first[j] = a[j] * c[j] - b[j] * s[j] * sign;
    second[j] = b[j] * c[j] + a[j] * s[j] * sign;
  }
  Store(first, to);
  Store(second, to + shape.half);
}

// The hash of worker/ops/dropout.cc: of a 32-bit word, which decides two channels.
__device__ uint32_t Mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352dU;
  x = (x ^ x >> 15) * 0x846ca68bU;
  return x ^ x >> 16;
}

template <bool kAdd, typename T>
__global__ void DropKernel(DropShape shape, const int64_t* keys, const int64_t* positions,
                           const T* x, T* y) {
  constexpr uint32_t kGolden = 0x9e3779b9U;
  const int64_t row = blockIdx.x, c = (blockIdx.y * blockDim.x + threadIdx.x) * int64_t{kPack};
  if (c >= shape.channels) return;
  const uint64_t key = static_cast<uint64_t>(keys[row / shape.rows_of_key]) ^ shape.site;
  const int64_t position = positions == nullptr ? row % shape.time : positions[row];
  const uint32_t of_row =
      Mixed(Mixed(static_cast<uint32_t>(key)) ^ static_cast<uint32_t>(key >> 32));
  const uint32_t state = Mixed(of_row + kGolden * static_cast<uint32_t>(position + 1));
  const int64_t at = row * shape.channels + c;
  float v[kPack], to[kPack] = {};
  Load(x + at, v);
  if (kAdd) Load(y + at, to);
#pragma unroll
  for (int i = 0; i < kPack; i += 2) {
    const uint32_t bits = Mixed(state + kGolden * static_cast<uint32_t>((c + i) / 2 + 1));
    if ((bits & 0xffff) >= shape.threshold) to[i] += v[i];
    if (bits >> 16 >= shape.threshold) to[i + 1] += v[i + 1];
  }
  Store(to, y + at);
}

constexpr int kLossThreads = 1024;

template <int kCount, typename T>
__global__ void __launch_bounds__(kLossThreads)
    CrossEntropyKernel(int64_t columns, T* logits, const int64_t* targets, const float* weights,
                       float* losses, bool* right) {
  T* row = logits + blockIdx.x * columns;
  const int64_t target = targets[blockIdx.x];
  const float logit = target < 0 ? 0.0F : ToFloat(row[target]);
  // One reading: a running maximum and the sum relative to it.
  float most = -INFINITY, sum = 0;
  for (int64_t c = threadIdx.x * kCount; c < columns; c += kLossThreads * kCount) {
    float v[kCount];
    Load(row + c, v);
    float larger = v[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) larger = fmaxf(larger, v[i]);
    if (larger > most) {
      sum *= __expf(most - larger);
      most = larger;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += __expf(v[i] - most);
  }
  const float maximum = Reduce<true>(most);
  const float total = Reduce(most == -INFINITY ? 0.0F : sum * __expf(most - maximum));
  const float weight = weights == nullptr ? 1.0F : weights[blockIdx.x];
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = target < 0 ? 0.0F : weight * (logf(total) + maximum - logit);
    if (right != nullptr) right[blockIdx.x] = target >= 0 && logit >= maximum;
  }
  const float factor = target < 0 ? 0.0F : weight / total;
  for (int64_t c = threadIdx.x * kCount; c < columns; c += kLossThreads * kCount) {
    float v[kCount];
    Load(row + c, v);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
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
    WithPack<T>({shape.columns, x.stride}, {x.gate, x.up, y}, [&](auto pack) {
      const RowGrid grid(shape, pack.value);
      SwiGluKernel<pack.value><<<grid.blocks, grid.threads, 0, Of(stream)>>>(
          shape.columns, static_cast<const T*>(x.gate), static_cast<const T*>(x.up), x.stride,
          static_cast<T*>(y));
    });
  });
}

void SwiGluBackward(Type type, const RowShape& shape, const GateUp<const void*>& x,
                    const GateUp<void*>& dx, Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    WithPack<T>({shape.columns, x.stride, dx.stride}, {x.gate, x.up, dx.gate, dx.up},
                [&](auto pack) {
                  const RowGrid grid(shape, pack.value);
                  SwiGluBackwardKernel<pack.value><<<grid.blocks, grid.threads, 0, Of(stream)>>>(
                      shape.columns, static_cast<const T*>(x.gate), static_cast<const T*>(x.up),
                      x.stride, static_cast<T*>(dx.gate), static_cast<T*>(dx.up), dx.stride);
                });
  });
}

void Rope(Type type, const RopeShape& shape, const void* x, const float* cosine, const float* sine,
          float sign, void* y, Stream stream) {
  const int64_t elements = shape.rows * shape.heads * shape.half;
  if (elements == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    WithPack<T>({shape.half, shape.from_stride, shape.to_stride}, {x, y}, [&](auto pack) {
      const int64_t packs = elements / pack.value;
      const auto blocks = static_cast<unsigned>((packs + kThreads - 1) / kThreads);
      RopeKernel<pack.value><<<blocks, kThreads, 0, Of(stream)>>>(
          shape, static_cast<const T*>(x), cosine, sine, sign, static_cast<T*>(y));
    });
  });
}

void Drop(Type type, const DropShape& shape, const int64_t* keys, const int64_t* positions,
          const void* x, bool add, void* y, Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const RowGrid grid({shape.rows, shape.channels}, kPack);
    const auto launch = [&](auto kernel) {
      kernel<<<grid.blocks, grid.threads, 0, Of(stream)>>>(
          shape, keys, positions, static_cast<const T*>(x), static_cast<T*>(y));
    };
    add ? launch(DropKernel<true, T>) : launch(DropKernel<false, T>);
  });
}

void CrossEntropy(Type type, const RowShape& shape, void* logits, const int64_t* targets,
                  const float* weights, float* losses, bool* right, Stream stream) {
  if (shape.rows == 0) return;
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    WithPack<T>({shape.columns}, {logits}, [&](auto pack) {
      CrossEntropyKernel<pack.value><<<shape.rows, kLossThreads, 0, Of(stream)>>>(
          shape.columns, static_cast<T*>(logits), targets, weights, losses, right);
    });
  });
}

}  // namespace espalier::cuda
