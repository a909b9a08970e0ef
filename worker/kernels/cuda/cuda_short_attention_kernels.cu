#include "worker/kernels/cuda/cuda_short_rows.cuh"

// A warp's positions are queries, whose scores stay in registers (Dao 2023, section 3.1, with all
// keys in one tile).
namespace espalier::cuda {
namespace {

// Blocks that a multiprocessor works on at once, as far as registers go: while one waits for
// memory the others multiply. 0: as they come.
template <int kWarps>
constexpr int kForwardBlocks = kWarps == 6   ? 4
                               : kWarps == 8 ? 2
                                             : 0;

// The scores of a warp's queries, of all keys.
template <int kWarps, typename T>
__device__ void Scores(const T* q, const T* k, float (&scores)[2 * kWarps][4]) {
  uint32_t left[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) LoadLeft(q + step * 16, kStride, left[step]);
#pragma unroll
  for (int n = 0; n < kWarps; ++n) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t right[4];
      LoadRightOfRows(k + n * 16 * kStride + step * 16, kStride, right);
      MultiplyAdd<T>(left[step], right, scores[2 * n]);
      MultiplyAdd<T>(left[step], right + 2, scores[2 * n + 1]);
    }
  }
}

// Of the two rows that a thread has parts of: the largest score, times log2(e), and the sum.
struct SoftmaxRows {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

// Turns the scores of the queries from `first` on into exp(score - largest), not divided yet.
template <int kWarps>
__device__ SoftmaxRows Exponentials(int first, int time, bool causal,
                                    float (&scores)[2 * kWarps][4]) {
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int lane = threadIdx.x % 32;
  SoftmaxRows rows;
#pragma unroll
  for (int n = 0; n < 2 * kWarps; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = n * 8 + lane % 4 * 2 + e % 2, query = first + lane / 4 + e / 2 * 8;
      const bool hidden = key >= time || (causal && key > query);
      scores[n][e] = hidden ? -INFINITY : scores[n][e] * scale;
      rows.most[e / 2] = fmaxf(rows.most[e / 2], scores[n][e]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.most[i] = MaximumOfFour(rows.most[i]);
#pragma unroll
  for (int n = 0; n < 2 * kWarps; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[n][e] = exp2f(scores[n][e] - rows.most[e / 2]);
      rows.sum[e / 2] += scores[n][e];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.sum[i] = SumOfFour(rows.sum[i]);
  return rows;
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
  float scores[2 * kWarps][4] = {}, out[kTiles][4] = {};
  Scores<kWarps>(q + first * kStride, k, scores);
  const SoftmaxRows rows = Exponentials<kWarps>(first, time, f.shape.causal, scores);
#pragma unroll
  for (int step = 0; step < kWarps; ++step) {
    uint32_t left[4];
    AsLeft<T>(scores[2 * step], scores[2 * step + 1], left);
    MultiplyRows(left, v + step * 16 * kStride, out);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] /= rows.sum[e / 2];
  }
  StoreRows(out, q + first * kStride, first, time, f.out + f.At(f.DenseRow()), f.DenseRow());
  if (f.sums == nullptr || lane % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = first + lane / 4 + i * 8;
    if (query < time) f.sums[f.AtSums() + query] = rows.most[i] + log2f(rows.sum[i]);
  }
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

}  // namespace espalier::cuda
