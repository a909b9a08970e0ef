// The norm's kernels: forward, and backward with the residual's gradient added.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

constexpr int kWarp = 32;
// Blocks of RmsNormBackward of kThreads each; fixed, since the sums depend on it.
constexpr int64_t kFullNormBlocks = 528;

// A row of a norm is a block's: thread t holds the packs t, t + threads, ... of kSlots rounds in
// registers. kWhole: there are exactly as many, so that nothing is asked between two loads, which
// then wait for memory together.
template <int kSlots, bool kWhole>
struct RowPlace {
  static constexpr int kRounds = kSlots;
  static constexpr bool kExact = kWhole;
  int64_t columns;

  __device__ int64_t Column(int slot) const { return (threadIdx.x + slot * blockDim.x) * kPack; }
  __device__ bool Has(int slot) const { return kWhole || Column(slot) < columns; }
};

template <int kSlots, bool kWhole, typename In, typename Out>
__global__ void RmsNormKernel(RowPlace<kSlots, kWhole> place, const In* x, const float* weight,
                              float eps, Out* y, float* inverse) {
  const In* row = x + blockIdx.x * place.columns;
  Out* out = y + blockIdx.x * place.columns;
  Pack<In> packs[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (place.Has(slot)) packs[slot] = LoadPack(row + place.Column(slot));
  }
  float sum = 0;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!place.Has(slot)) break;
    float v[kPack];
    Unpack(packs[slot], v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += v[i] * v[i];
  }
  const float r = rsqrtf(Reduce(sum) / static_cast<float>(place.columns) + eps);
  if (threadIdx.x == 0) inverse[blockIdx.x] = r;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (!place.Has(slot)) break;
    float v[kPack], w[kPack];
    Unpack(packs[slot], v);
    Load(weight + place.Column(slot), w);
#pragma unroll
    for (int i = 0; i < kPack; ++i) v[i] *= r * w[i];
    Store(v, out + place.Column(slot));
  }
}

// A block takes every gridDim-th row and keeps its part of the weight's gradient in registers too
// (kSums: where one is wanted).
// With g = dy * weight: dx = r g - x r^3 mean(g x); dweight = sum of dy x r.
template <int kSlots, bool kWhole, bool kOther, bool kSums, typename In, typename Out>
__global__ void RmsNormBackwardKernel(RowPlace<kSlots, kWhole> place, int64_t rows, const In* x,
                                      const float* weight, const float* inverse, const Out* dy,
                                      const In* other, In* dx, float* partial) {
  float sums[kSlots][kPack] = {}, w[kSlots][kPack];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    if (place.Has(slot)) Load(weight + place.Column(slot), w[slot]);
  }
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t begin = row * place.columns;
    Pack<In> packs_x[kSlots], packs_other[kSlots];
    Pack<Out> packs_dy[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!place.Has(slot)) break;
      const int64_t at = begin + place.Column(slot);
      packs_x[slot] = LoadPack(x + at);
      packs_dy[slot] = LoadPack(dy + at);
      if (kOther) packs_other[slot] = LoadPack(other + at);
    }
    const float r = inverse[row];
    float dot = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!place.Has(slot)) break;
      float v[kPack], g[kPack];
      Unpack(packs_x[slot], v);
      Unpack(packs_dy[slot], g);
#pragma unroll
      for (int i = 0; i < kPack; ++i) dot += g[i] * w[slot][i] * v[i];
    }
    const float pull = Reduce(dot) * r * r * r / static_cast<float>(place.columns);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!place.Has(slot)) break;
      float v[kPack], g[kPack], o[kPack] = {};
      Unpack(packs_x[slot], v);
      Unpack(packs_dy[slot], g);
      if (kOther) Unpack(packs_other[slot], o);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (kSums) sums[slot][i] += g[i] * v[i] * r;
        o[i] += r * g[i] * w[slot][i] - v[i] * pull;
      }
      Store(o, dx + begin + place.Column(slot));
    }
  }
  if constexpr (kSums) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!place.Has(slot)) break;
      Store(sums[slot], partial + blockIdx.x * place.columns + place.Column(slot));
    }
  }
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

// Calls body with null pointers of the types' C++ types and the place of a row's parts.
template <typename Body>
void WithNorm(NormTypes types, const RowThreads& row, int64_t columns, Body&& body) {
  WithType(types.out, [&](auto* out) {
    const auto with_place = [&](auto* in, auto slots) {
      const bool whole = columns == slots.value * int64_t{row.threads} * kPack;
      whole ? body(in, out, RowPlace<slots.value, true>{columns})
            : body(in, out, RowPlace<slots.value, false>{columns});
    };
    const auto with_slots = [&](auto* in) {
      if (row.slots <= 1) return with_place(in, std::integral_constant<int, 1>());
      if (row.slots <= 2) return with_place(in, std::integral_constant<int, 2>());
      if (row.slots == 3) return with_place(in, std::integral_constant<int, 3>());
      if (row.slots <= 4) return with_place(in, std::integral_constant<int, 4>());
      return with_place(in, std::integral_constant<int, 8>());
    };
    types.in == Type::kFloat ? with_slots(static_cast<float*>(nullptr)) : with_slots(out);
  });
}

}  // namespace

int64_t NormBlocks(int64_t columns) {
  return kFullNormBlocks * kThreads / RowThreads(columns).threads;
}

void RmsNorm(NormTypes types, const RowShape& shape, const void* x, const float* weight, float eps,
             void* y, float* inverse, Stream stream) {
  if (shape.rows == 0) return;
  const RowThreads row(shape.columns);
  WithNorm(types, row, shape.columns, [&](auto* in, auto* out, auto place) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    RmsNormKernel<<<shape.rows, row.threads, 0, Of(stream)>>>(
        place, static_cast<const In*>(x), weight, eps, static_cast<Out*>(y), inverse);
  });
}

void RmsNormBackward(NormTypes types, const RowShape& shape, const void* x, const float* weight,
                     const float* inverse, const void* dy, const void* other, void* dx,
                     float* partial, Stream stream) {
  const RowThreads row(shape.columns);
  const auto blocks = static_cast<unsigned>(NormBlocks(shape.columns));
  WithNorm(types, row, shape.columns, [&](auto* in, auto* out, auto place) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, row.threads, 0, Of(stream)>>>(place, shape.rows, static_cast<const In*>(x),
                                                     weight, inverse, static_cast<const Out*>(dy),
                                                     static_cast<const In*>(other),
                                                     static_cast<In*>(dx), partial);
    };
    constexpr int kSlots = decltype(place)::kRounds;
    constexpr bool kWhole = decltype(place)::kExact;
    const auto with = [&](auto sums) {
      constexpr bool kSums = decltype(sums)::value;
      other == nullptr ? launch(RmsNormBackwardKernel<kSlots, kWhole, false, kSums, In, Out>)
                       : launch(RmsNormBackwardKernel<kSlots, kWhole, true, kSums, In, Out>);
    };
    partial == nullptr ? with(std::false_type()) : with(std::true_type());
  });
}

}  // namespace espalier::cuda
