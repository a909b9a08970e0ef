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

// Short rows of 16 bits have a warp each, which waits for no other: 16 bytes a thread and round.
constexpr int kRowPack = 8;
constexpr int64_t kRowRound = kWarp * kRowPack;
constexpr int64_t kMostRowColumns = 4 * kRowRound;

template <int kRounds, typename T>
struct ShortRow {
  static constexpr int64_t kColumns = kRounds * kRowRound;

  static __device__ int64_t Number() {
    return blockIdx.x * int64_t{kThreads / kWarp} + threadIdx.x / kWarp;
  }
  static __device__ int64_t Column(int round) {
    return (threadIdx.x % kWarp + round * kWarp) * int64_t{kRowPack};
  }
  static __device__ void Get(const T* row, float (&to)[kRounds][kRowPack]) {
    Pack<T, kRowPack> packs[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) packs[i] = LoadPack<kRowPack>(row + Column(i));
#pragma unroll
    for (int i = 0; i < kRounds; ++i) Unpack(packs[i], to[i]);
  }
  static __device__ float Sum(float value) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      value += __shfl_xor_sync(~0U, value, offset);
    }
    return value;
  }
};

template <int kRounds, typename T>
__global__ void ShortRmsNormKernel(int64_t rows, const T* x, const float* weight, float eps,
                                   const T* plus, T* y, float* inverse) {
  using Row = ShortRow<kRounds, T>;
  const int64_t row = Row::Number();
  if (row >= rows) return;
  float v[kRounds][kRowPack], p[kRounds][kRowPack] = {}, sum = 0;
  Row::Get(x + row * Row::kColumns, v);
  if (plus != nullptr) Row::Get(plus + row * Row::kColumns, p);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int j = 0; j < kRowPack; ++j) sum += v[i][j] * v[i][j];
  }
  const float r = rsqrtf(Row::Sum(sum) / static_cast<float>(Row::kColumns) + eps);
  if (threadIdx.x % kWarp == 0) inverse[row] = r;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    float w[kRowPack];
    Load(weight + Row::Column(i), w);
#pragma unroll
    for (int j = 0; j < kRowPack; ++j) v[i][j] = v[i][j] * (r * w[j]) + p[i][j];
    Store(v[i], y + row * Row::kColumns + Row::Column(i));
  }
}

// Of a norm whose weight is not learned.
template <int kRounds, typename T>
__global__ void ShortRmsNormBackwardKernel(int64_t rows, const T* x, const float* weight,
                                           const float* inverse, const T* dy, const T* other,
                                           T* dx) {
  using Row = ShortRow<kRounds, T>;
  const int64_t row = Row::Number(), begin = row * Row::kColumns;
  if (row >= rows) return;
  float v[kRounds][kRowPack], g[kRounds][kRowPack], o[kRounds][kRowPack] = {}, dot = 0;
  Row::Get(x + begin, v);
  Row::Get(dy + begin, g);
  if (other != nullptr) Row::Get(other + begin, o);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    float w[kRowPack];
    Load(weight + Row::Column(i), w);
#pragma unroll
    for (int j = 0; j < kRowPack; ++j) {
      g[i][j] *= w[j];
      dot += g[i][j] * v[i][j];
    }
  }
  const float r = inverse[row];
  const float pull = Row::Sum(dot) * r * r * r / static_cast<float>(Row::kColumns);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int j = 0; j < kRowPack; ++j) o[i][j] += r * g[i][j] - v[i][j] * pull;
    Store(o[i], dx + begin + Row::Column(i));
  }
}

// Calls body with a null pointer of the type's C++ type and a row's rounds, as a constant; returns
// false, having done nothing, where rows are no ShortRow.
template <typename Body>
bool WithShortRow(NormTypes types, int64_t columns, std::initializer_list<const void*> addresses,
                  Body&& body) {
  if (types.in != types.out || types.in == Type::kFloat) return false;
  if (columns % kRowRound != 0 || columns > kMostRowColumns) return false;
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  const auto with_rounds = [&](auto* none) {
    if (columns == kRowRound) return body(none, std::integral_constant<int, 1>());
    if (columns == 2 * kRowRound) return body(none, std::integral_constant<int, 2>());
    if (columns == 3 * kRowRound) return body(none, std::integral_constant<int, 3>());
    body(none, std::integral_constant<int, 4>());
  };
  types.in == Type::kBf16 ? with_rounds(static_cast<__nv_bfloat16*>(nullptr))
                          : with_rounds(static_cast<__half*>(nullptr));
  return true;
}

unsigned ShortRowBlocks(int64_t rows) {
  constexpr int64_t kRows = kThreads / kWarp;
  return static_cast<unsigned>((rows + kRows - 1) / kRows);
}

}  // namespace

int64_t NormBlocks(int64_t columns) {
  return kFullNormBlocks * kThreads / RowThreads(columns).threads;
}

void RmsNorm(NormTypes types, const RowShape& shape, const void* x, const float* weight, float eps,
             void* y, float* inverse, Stream stream) {
  if (shape.rows == 0) return;
  const bool is_short =
      WithShortRow(types, shape.columns, {x, y, weight}, [&](auto* none, auto rounds) {
        using T = std::remove_pointer_t<decltype(none)>;
        ShortRmsNormKernel<decltype(rounds)::value>
            <<<ShortRowBlocks(shape.rows), kThreads, 0, Of(stream)>>>(
                shape.rows, static_cast<const T*>(x), weight, eps, static_cast<const T*>(nullptr),
                static_cast<T*>(y), inverse);
      });
  if (is_short) return;
  const RowThreads row(shape.columns);
  WithNorm(types, row, shape.columns, [&](auto* in, auto* out, auto place) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    RmsNormKernel<<<shape.rows, row.threads, 0, Of(stream)>>>(
        place, static_cast<const In*>(x), weight, eps, static_cast<Out*>(y), inverse);
  });
}

bool ShortRmsNormAdd(Type type, const RowShape& shape, const void* x, const float* weight,
                     float eps, const void* plus, void* y, float* inverse, Stream stream) {
  return shape.rows > 0 &&
         WithShortRow({type, type}, shape.columns, {x, y, weight, plus},
                      [&](auto* none, auto rounds) {
                        using T = std::remove_pointer_t<decltype(none)>;
                        ShortRmsNormKernel<decltype(rounds)::value>
                            <<<ShortRowBlocks(shape.rows), kThreads, 0, Of(stream)>>>(
                                shape.rows, static_cast<const T*>(x), weight, eps,
                                static_cast<const T*>(plus), static_cast<T*>(y), inverse);
                      });
}

void RmsNormBackward(NormTypes types, const RowShape& shape, const void* x, const float* weight,
                     const float* inverse, const void* dy, const void* other, void* dx,
                     float* partial, Stream stream) {
  const auto short_row = [&](auto* none, auto rounds) {
    using T = std::remove_pointer_t<decltype(none)>;
    ShortRmsNormBackwardKernel<decltype(rounds)::value>
        <<<ShortRowBlocks(shape.rows), kThreads, 0, Of(stream)>>>(
            shape.rows, static_cast<const T*>(x), weight, inverse, static_cast<const T*>(dy),
            static_cast<const T*>(other), static_cast<T*>(dx));
  };
  if (partial == nullptr && shape.rows > 0 &&
      WithShortRow(types, shape.columns, {x, weight, dy, other, dx}, short_row)) {
    return;
  }
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
