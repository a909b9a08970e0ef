#include "worker/kernels/cuda/cuda_short_rows.cuh"

// A warp's positions are keys, so that the gradients of k and v are sums of one warp; that of q is
// made from the gradients of the scores, which lie in shared memory (Dao 2023, section 3.1, with
// the scores made again).
namespace espalier::cuda {
namespace {

// As kForwardBlocks.
template <int kWarps>
constexpr int kBackwardBlocks = kWarps == 8 ? 2 : 3;

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

// Of a warp's keys [16] and of 16 queries: their scores, and the gradients of their probabilities.
// The keys are read anew each time: a block more fits beside.
template <typename T>
__device__ void KeyProducts(const T* k, const T* v, const T* q, const T* dout, float (&p)[2][4],
                            float (&d)[2][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t left[4], right[4];
    LoadLeft(k + step * 16, kStride, left);
    LoadRightOfRows(q + step * 16, kStride, right);
    MultiplyAdd<T>(left, right, p[0]);
    MultiplyAdd<T>(left, right + 2, p[1]);
    LoadLeft(v + step * 16, kStride, left);
    LoadRightOfRows(dout + step * 16, kStride, right);
    MultiplyAdd<T>(left, right, d[0]);
    MultiplyAdd<T>(left, right + 2, d[1]);
  }
}

// Turns them into probabilities, and gradients of scores.
__device__ void OfScores(int first_key, int first_query, int time, bool causal, const float* sums,
                         const float* products, float (&p)[2][4], float (&d)[2][4]) {
  const float scale = kLog2E * rsqrtf(static_cast<float>(kDim));
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first_key + lane / 4 + e / 2 * 8;
      const int query = first_query + n * 8 + lane % 4 * 2 + e % 2;
      const bool hidden = key >= time || query >= time || (causal && key > query);
      p[n][e] = hidden ? 0 : exp2f(p[n][e] * scale - sums[query]);
      d[n][e] = p[n][e] * (d[n][e] - products[query]);
    }
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
  const float root = rsqrtf(static_cast<float>(kDim));
  float dk[kTiles][4] = {}, dv[kTiles][4] = {};
#pragma unroll 1
  for (int j = 0; j < kWarps; ++j) {
    const T *const of_q = q + j * 16 * kStride, *const of_dout = dout + j * 16 * kStride;
    float p[2][4] = {}, d[2][4] = {};
    KeyProducts(k + first * kStride, v + first * kStride, of_q, of_dout, p, d);
    OfScores(first, j * 16, time, f.shape.causal, sums, products, p, d);
    uint32_t left[4], dleft[4];
    AsLeft<T>(p[0], p[1], left);
    AsLeft<T>(d[0], d[1], dleft);
    T* const to = dscores + (first + lane / 4) * kScores + j * 16 + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      *reinterpret_cast<uint32_t*>(to + e % 2 * 8 * kScores + e / 2 * 8) = dleft[e];
    }
    MultiplyRows(left, of_dout, dv);
    MultiplyRows(dleft, of_q, dk);
  }
  __syncthreads();  // of q, v and dout no more is read

  const int64_t row_step = f.shape.grad_row, at = f.At(row_step);
  StoreRows(dv, v + first * kStride, first, time, f.dv + at, row_step);
  TurnBack(f, first, root, dk);
  StoreRows(dk, dout + first * kStride, first, time, f.dk + at, row_step);
  float dq[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kWarps; ++step) {
    uint32_t left[4];
    LoadLeftOfColumns(dscores + step * 16 * kScores + first, kScores, left);
    MultiplyRows(left, k + step * 16 * kStride, dq);
  }
  TurnBack(f, first, root, dq);
  StoreRows(dq, q + first * kStride, first, time, f.dq + at, row_step);
}

}  // namespace

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
