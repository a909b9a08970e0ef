#include <cmath>

#include "worker/kernels/cuda/cuda_matrix_units.cuh"
#include "worker/kernels/cuda/cuda_pack.cuh"
#include "worker/kernels/cuda/cuda_short_attention.h"

// One block has one head of one sequence, and one warp 16 of its positions. Forward a warp's are
// queries, whose scores stay in registers (Dao 2023, section 3.1, with all keys in one tile).
// Backward they are keys, so that the gradients of k and v are sums of one warp; that of q is made
// from the gradients of the scores, which lie in shared memory.
namespace espalier::cuda {
namespace {

constexpr int kDim = static_cast<int>(kShortHeadDim);
constexpr int kHalf = kDim / 2;
constexpr int kStride = kDim + 8;  // of a row in shared memory: eight rows begin in eight banks
constexpr int kRows = 16;          // positions of a warp
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

// Blocks that a multiprocessor works on at once, as far as registers go: while one waits for
// memory the others multiply. 0: as they come.
template <int kWarps>
constexpr int kForwardBlocks = kWarps == 6 ? 4 : 0;
template <int kWarps>
constexpr int kBackwardBlocks = kWarps == 8 ? 2 : 3;

template <int kWarps>
constexpr size_t kForwardBytes = 3 * kTileNumbers<kWarps> * 2;
template <int kWarps>
constexpr size_t kBackwardBytes = 4 * kTileNumbers<kWarps> * 2 +
                                  kPositions<kWarps>* kScoreStride<kWarps> * 2 +
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
__device__ void Turn(float (&a)[8], float (&b)[8], const float (&c)[8], const float (&s)[8],
                     T* to) {
  float first[8], second[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    first[i] = a[i] * c[i] - b[i] * s[i];
    second[i] = b[i] * c[i] + a[i] * s[i];
  }
  Store(first, to);
  Store(second, to + kHalf);
}

// q and k of all positions, turned, zeros behind the last one; kAtOnce of the two rounds together.
template <int kWarps, int kAtOnce, typename T>
__device__ void LoadTurned(const HeadArguments<T>& f, T* q, T* k) {
  const int64_t at = f.At(f.shape.row);
#pragma unroll(kAtOnce)
  for (int i = 0; i < 2; ++i) {
    const int place = threadIdx.x + i * kWarps * 32, row = place / 4, c = place % 4 * 8;
    float qa[8] = {}, qb[8] = {}, ka[8] = {}, kb[8] = {}, cosine[8], sine[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) cosine[j] = 1, sine[j] = 0;
    if (row < f.shape.time) {
      const int64_t from = at + row * f.shape.row + c;
      Load(f.q + from, qa);
      Load(f.q + from + kHalf, qb);
      Load(f.k + from, ka);
      Load(f.k + from + kHalf, kb);
      if (f.cosine != nullptr) {
        Load(f.cosine + row * kHalf + c, cosine);
        Load(f.sine + row * kHalf + c, sine);
      }
    }
    Turn(qa, qb, cosine, sine, q + row * kStride + c);
    Turn(ka, kb, cosine, sine, k + row * kStride + c);
  }
}

// A matrix of the head as it is, zeros behind the last position.
template <int kWarps, typename T>
__device__ void LoadPlain(const T* from, int64_t row_step, int64_t time, T* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int place = threadIdx.x + i * kWarps * 32, row = place / 8, c = place % 8 * 8;
    Pack<T, 8> pack;
#pragma unroll
    for (int j = 0; j < 8; ++j) pack.at[j] = FromFloat<T>(0);
    if (row < time) pack = LoadPack<8>(from + row * row_step + c);
    *reinterpret_cast<Pack<T, 8>*>(to + row * kStride + c) = pack;
  }
}

// Writes a warp's rows [16, 64] through `staged`, shared memory of its own for them.
template <typename T>
__device__ void StoreRows(const float (&rows)[kTiles][4], T* staged, int first, int64_t time, T* to,
                          int64_t row_step) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    T* at = staged + lane / 4 * kStride + n * 8 + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(at) = Packed<T>(rows[n][0], rows[n][1]);
    *reinterpret_cast<uint32_t*>(at + 8 * kStride) = Packed<T>(rows[n][2], rows[n][3]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8, c = lane % 8 * 8;
    if (first + row >= time) continue;
    *reinterpret_cast<Pack<T, 8>*>(to + (first + row) * row_step + c) =
        LoadPack<8>(staged + row * kStride + c);
  }
}

// The gradient of rows from that of rows turned, `scale` times: columns i and i + 32 are of one
// thread.
template <typename T>
__device__ void TurnBack(const HeadArguments<T>& f, int first, float scale,
                         float (&rows)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) rows[n][e] *= scale;
  }
  if (f.cosine == nullptr) return;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles / 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = min(first + lane / 4 + e / 2 * 8, static_cast<int>(f.shape.time) - 1);
      const int at = row * kHalf + n * 8 + lane % 4 * 2 + e % 2;
      const float c = f.cosine[at], s = f.sine[at];
      const float a = rows[n][e], b = rows[n + kTiles / 2][e];
      rows[n][e] = a * c + b * s;
      rows[n + kTiles / 2][e] = b * c - a * s;
    }
  }
}

template <int kWarps, typename T>
__global__ void __launch_bounds__(kWarps * 32, kForwardBlocks<kWarps>)
    ForwardKernel(HeadArguments<T> f) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T *const k = q + kTileNumbers<kWarps>, *const v = k + kTileNumbers<kWarps>;
  const int time = static_cast<int>(f.shape.time);
  LoadPlain<kWarps>(f.v + f.At(f.shape.row), f.shape.row, time, v);
  LoadTurned<kWarps, 2>(f, q, k);
  __syncthreads();
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * kRows;
  if (first >= time) return;

  uint32_t a[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    LoadLeft(q + first * kStride + step * 16, kStride, a[step]);
  float scores[2 * kWarps][4] = {};
#pragma unroll
  for (int n = 0; n < kWarps; ++n) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[4];
      LoadRightOfRows(k + n * 16 * kStride + step * 16, kStride, b);
      MultiplyAdd<T>(a[step], b, scores[2 * n]);
      MultiplyAdd<T>(a[step], b + 2, scores[2 * n + 1]);
    }
  }

  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
  for (int n = 0; n < 2 * kWarps; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = n * 8 + lane % 4 * 2 + e % 2, query = first + lane / 4 + e / 2 * 8;
      const bool hidden = key >= time || (f.shape.causal && key > query);
      scores[n][e] = hidden ? -INFINITY : scores[n][e] * scale;
      most[e / 2] = fmaxf(most[e / 2], scores[n][e]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) most[i] = MaximumOfFour(most[i]);
#pragma unroll
  for (int n = 0; n < 2 * kWarps; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[n][e] = exp2f(scores[n][e] - most[e / 2]);
      sum[e / 2] += scores[n][e];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) sum[i] = SumOfFour(sum[i]);

  float out[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kWarps; ++step) {
    const uint32_t p[4] = {Packed<T>(scores[2 * step][0], scores[2 * step][1]),
                           Packed<T>(scores[2 * step][2], scores[2 * step][3]),
                           Packed<T>(scores[2 * step + 1][0], scores[2 * step + 1][1]),
                           Packed<T>(scores[2 * step + 1][2], scores[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      LoadRightOfColumns(v + step * 16 * kStride + n * 8, kStride, b);
      MultiplyAdd<T>(p, b, out[n]);
      MultiplyAdd<T>(p, b + 2, out[n + 1]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] /= sum[e / 2];
  }
  StoreRows(out, q + first * kStride, first, time, f.out + f.At(f.DenseRow()), f.DenseRow());
  if (f.sums == nullptr || lane % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = first + lane / 4 + i * 8;
    if (query < time) f.sums[f.AtSums() + query] = most[i] + log2f(sum[i]);
  }
}

// The gradient of out, and of each position its product with out, which is the sum over keys of
// probability times its gradient.
template <int kWarps, typename T>
__device__ void LoadGradient(const HeadArguments<T>& f, T* dout, float* products) {
  const int64_t row_step = f.DenseRow(), at = f.At(row_step);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int place = threadIdx.x + i * kWarps * 32, row = place / 8, c = place % 8 * 8;
    float gradient[8] = {}, out[8] = {}, product = 0;
    if (row < f.shape.time) {
      Load(f.dout + at + row * row_step + c, gradient);
      Load(f.out + at + row * row_step + c, out);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) product += gradient[j] * out[j];
    Store(gradient, dout + row * kStride + c);
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
      product += __shfl_xor_sync(~0U, product, offset);
    }
    if (place % 8 == 0) products[row] = product;
  }
}

template <int kWarps, typename T>
__global__ void __launch_bounds__(kWarps * 32, kBackwardBlocks<kWarps>)
    BackwardKernel(HeadArguments<T> f) {
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr int kScores = kScoreStride<kWarps>;
  T* const q = reinterpret_cast<T*>(memory);
  T *const k = q + kTileNumbers<kWarps>, *const v = k + kTileNumbers<kWarps>;
  T *const dout = v + kTileNumbers<kWarps>, *const dscores = dout + kTileNumbers<kWarps>;
  float* const sums = reinterpret_cast<float*>(dscores + kPositions<kWarps> * kScores);
  float* const products = sums + kPositions<kWarps>;
  const int time = static_cast<int>(f.shape.time);
  LoadPlain<kWarps>(f.v + f.At(f.shape.row), f.shape.row, time, v);
  LoadTurned<kWarps, 1>(f, q, k);
  LoadGradient<kWarps>(f, dout, products);
  for (int i = threadIdx.x; i < kPositions<kWarps>; i += kWarps * 32) {
    sums[i] = i < time ? f.sums[f.AtSums() + i] : 0;
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * kRows;
  const float root = rsqrtf(static_cast<float>(kDim)), scale = kLog2E * root;
  float dk[kTiles][4] = {}, dv[kTiles][4] = {};
#pragma unroll 1
  for (int j = 0; j < kWarps; ++j) {
    float p[2][4] = {}, d[2][4] = {};  // [keys, queries]
    const T *const of_q = q + j * 16 * kStride, *const of_dout = dout + j * 16 * kStride;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4], b[4];  // read anew each time: a second block fits beside
      LoadLeft(k + first * kStride + step * 16, kStride, a);
      LoadRightOfRows(of_q + step * 16, kStride, b);
      MultiplyAdd<T>(a, b, p[0]);
      MultiplyAdd<T>(a, b + 2, p[1]);
      LoadLeft(v + first * kStride + step * 16, kStride, a);
      LoadRightOfRows(of_dout + step * 16, kStride, b);
      MultiplyAdd<T>(a, b, d[0]);
      MultiplyAdd<T>(a, b + 2, d[1]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + lane / 4 + e / 2 * 8, query = j * 16 + n * 8 + lane % 4 * 2 + e % 2;
        const bool hidden = key >= time || query >= time || (f.shape.causal && key > query);
        p[n][e] = hidden ? 0 : exp2f(p[n][e] * scale - sums[query]);
        d[n][e] = p[n][e] * (d[n][e] - products[query]);
      }
    }
    const uint32_t left[4] = {Packed<T>(p[0][0], p[0][1]), Packed<T>(p[0][2], p[0][3]),
                              Packed<T>(p[1][0], p[1][1]), Packed<T>(p[1][2], p[1][3])};
    const uint32_t dleft[4] = {Packed<T>(d[0][0], d[0][1]), Packed<T>(d[0][2], d[0][3]),
                               Packed<T>(d[1][0], d[1][1]), Packed<T>(d[1][2], d[1][3])};
    T* const to = dscores + (first + lane / 4) * kScores + j * 16 + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      *reinterpret_cast<uint32_t*>(to + e % 2 * 8 * kScores + e / 2 * 8) = dleft[e];
    }
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      LoadRightOfColumns(of_dout + n * 8, kStride, b);
      MultiplyAdd<T>(left, b, dv[n]);
      MultiplyAdd<T>(left, b + 2, dv[n + 1]);
      LoadRightOfColumns(of_q + n * 8, kStride, b);
      MultiplyAdd<T>(dleft, b, dk[n]);
      MultiplyAdd<T>(dleft, b + 2, dk[n + 1]);
    }
  }
  __syncthreads();  // of q, v and dout no more is read

  const int64_t row_step = f.shape.grad_row, at = f.At(row_step);
  StoreRows(dv, v + first * kStride, first, time, f.dv + at, row_step);
  TurnBack(f, first, root, dk);
  StoreRows(dk, dout + first * kStride, first, time, f.dk + at, row_step);
  float dq[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kWarps; ++step) {
    uint32_t a[4];
    LoadLeftOfColumns(dscores + step * 16 * kScores + first, kScores, a);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      LoadRightOfColumns(k + step * 16 * kStride + n * 8, kStride, b);
      MultiplyAdd<T>(a, b, dq[n]);
      MultiplyAdd<T>(a, b + 2, dq[n + 1]);
    }
  }
  TurnBack(f, first, root, dq);
  StoreRows(dq, q + first * kStride, first, time, f.dq + at, row_step);
}

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
  if (time <= 2 * kRows) return body(std::integral_constant<int, 2>());
  if (time <= 4 * kRows) return body(std::integral_constant<int, 4>());
  if (time <= 6 * kRows) return body(std::integral_constant<int, 6>());
  body(std::integral_constant<int, 8>());
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

}  // namespace

bool TakesShortAttention(Type type, int64_t time) {
  if (type == Type::kFloat || time < 1 || time > kMostShortPositions) return false;
  int device = 0, major = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  bool takes = false;
  WithWarps(time, [&](auto warps) {
    takes = major >= 8 && kBackwardBytes<decltype(warps)::value> <= static_cast<size_t>(most);
  });
  return takes;
}

void ShortAttention(Type type, const ShortAttentionShape& shape,
                    const ShortAttentionPointers& pointers, Stream stream) {
  WithNarrow(type, [&](auto* none) {
    using T = std::remove_pointer_t<decltype(none)>;
    WithWarps(shape.time, [&](auto warps) {
      constexpr int kWarps = decltype(warps)::value;
      Launch(ForwardKernel<kWarps, T>, kWarps, kForwardBytes<kWarps>,
             ArgumentsOf<T>(shape, pointers), stream);
    });
  });
}

void ShortAttentionBackward(Type type, const ShortAttentionShape& shape,
                            const ShortAttentionPointers& pointers,
                            const ShortAttentionGradients& gradients, Stream stream) {
  WithNarrow(type, [&](auto* none) {
    using T = std::remove_pointer_t<decltype(none)>;
    HeadArguments<T> f = ArgumentsOf<T>(shape, pointers);
    f.dout = static_cast<const T*>(gradients.out);
    f.dq = static_cast<T*>(gradients.q);
    f.dk = static_cast<T*>(gradients.k);
    f.dv = static_cast<T*>(gradients.v);
    WithWarps(shape.time, [&](auto warps) {
      constexpr int kWarps = decltype(warps)::value;
      Launch(BackwardKernel<kWarps, T>, kWarps, kBackwardBytes<kWarps>, f, stream);
    });
  });
}

}  // namespace espalier::cuda
