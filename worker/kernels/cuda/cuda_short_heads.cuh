// What attention of short sequences needs forward and backward: the layout of a head in shared
// memory, and how kernels are launched. One block has one head of one sequence, and one warp 32 of
// its positions, in two tiles of 16: what it reads of the other positions serves both. Included by
// cuda_*.cu of this folder alone. Used by cuda_short_attention_kernels.cu and
// cuda_short_attention_backward_kernels.cu.
#pragma once

#include <cmath>
#include <type_traits>

#include "worker/kernels/cuda/cuda_pack.cuh"
#include "worker/kernels/cuda/cuda_short_attention.h"

namespace espalier::cuda {

constexpr int kDim = static_cast<int>(kShortHeadDim);
constexpr int kHalf = kDim / 2;
constexpr int kStride = kDim + 8;  // of a row in shared memory: eight rows begin in eight banks
constexpr int kTile = 16;          // positions of a tile
constexpr int kRows = 2 * kTile;   // positions of a warp
constexpr int kSteps = kDim / 16;  // of a product over the width of a head
constexpr int kTiles = kDim / 8;   // of 8 columns
constexpr float kLog2E = 1.4426950408889634F;

template <int kWarps>
constexpr int kPositions = kWarps* kRows;
template <int kWarps>
constexpr int kTileNumbers = kPositions<kWarps>* kStride;
// Of gradients of scores, [keys, queries].
template <int kWarps>
constexpr int kScoreStride = kPositions<kWarps> + 8;

template <int kWarps>
constexpr size_t kForwardBytes = 3 * kTileNumbers<kWarps> * 2;
// In a warp's own memory, through which its tiles leave.
constexpr int kStagedNumbers = kTile * kStride;
// Gradients of scores, and what is staged beside them, take the place of v and of the gradient of
// out.
template <int kWarps>
constexpr int kScoreNumbers = kPositions<kWarps>* kScoreStride<kWarps>;
template <int kWarps>
constexpr int kSharedNumbers =
    2 * kTileNumbers<kWarps> > kScoreNumbers<kWarps> + kWarps* kStagedNumbers
        ? 2 * kTileNumbers<kWarps>
        : kScoreNumbers<kWarps> + kWarps* kStagedNumbers;
template <int kWarps>
constexpr size_t kBackwardBytes = (2 * kTileNumbers<kWarps> + kSharedNumbers<kWarps>)*2 +
                                  2 * kPositions<kWarps> * sizeof(float);

template <typename T>
struct HeadArguments {
  ShortAttentionShape shape;
  const T *q, *k, *v;
  const float *cosine, *sine;
  T* out;
  float* sums;
  const T* dout;
  T *dq, *dk, *dv;

  // What the block's head begins at, in rows of so many elements.
  __device__ int64_t At(int64_t row) const {
    return blockIdx.y * shape.time * row + blockIdx.x * int64_t{kDim};
  }
  __device__ int64_t DenseRow() const { return shape.heads * kDim; }
  __device__ int64_t AtSums() const { return (blockIdx.y * shape.heads + blockIdx.x) * shape.time; }
};

template <typename T>
HeadArguments<T> ArgumentsOf(const ShortAttentionShape& shape,
                             const ShortAttentionPointers& pointers) {
  const auto numbers = [](const void* x) { return static_cast<const T*>(x); };
  return {.shape = shape,
          .q = numbers(pointers.q),
          .k = numbers(pointers.k),
          .v = numbers(pointers.v),
          .cosine = pointers.cosine,
          .sine = pointers.sine,
          .out = static_cast<T*>(pointers.out),
          .sums = pointers.sums};
}

// Calls body with the number of warps that have all positions, as a constant.
template <typename Body>
void WithWarps(int64_t time, Body&& body) {
  if (time <= 1 * kRows) return body(std::integral_constant<int, 1>());
  if (time <= 2 * kRows) return body(std::integral_constant<int, 2>());
  if (time <= 3 * kRows) return body(std::integral_constant<int, 3>());
  body(std::integral_constant<int, 4>());
}

// Calls body with the number of warps and whether positions see those before them alone.
template <typename Body>
void WithWarpsAndMask(const ShortAttentionShape& shape, Body&& body) {
  WithWarps(shape.time, [&](auto warps) {
    if (shape.causal) return body(warps, std::true_type());
    body(warps, std::false_type());
  });
}

// Calls body with a null pointer of the type's C++ type, which has 16 bits.
template <typename Body>
void WithNarrow(Type type, Body&& body) {
  if (type == Type::kBf16) body(static_cast<__nv_bfloat16*>(nullptr));
  if (type == Type::kHalf) body(static_cast<__half*>(nullptr));
}

template <typename Kernel, typename T>
void Launch(Kernel kernel, int warps, size_t bytes, const HeadArguments<T>& f, Stream stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  const dim3 blocks(static_cast<unsigned>(f.shape.heads), static_cast<unsigned>(f.shape.batch));
  kernel<<<blocks, warps * 32, bytes, Of(stream)>>>(f);
}

}  // namespace espalier::cuda
