#include "worker/kernels/cuda/cuda_short_rows.cuh"

// A warp's positions are queries, whose scores stay in registers (Dao 2023, section 3.1, with all
// keys in one tile).
namespace espalier::cuda {
namespace {

// Blocks that a multiprocessor works on at once, as far as registers go: while one waits for
// memory the others multiply. 0: as they come.
template <int kWarps>
constexpr int kForwardBlocks = kWarps == 3   ? 4
                               : kWarps == 4 ? 2
                                             : 0;

// Of a warp's queries, in two tiles, to all keys.
template <int kWarps>
using AllScores = float[2][4 * kWarps][4];

// What comes next is read while the matrix units work.
template <int kWarps, typename T>
__device__ void Scores(const T* q, const T* k, AllScores<kWarps>& scores) {
  constexpr int kPairs = 2 * kWarps;
  uint32_t left[2][4], right[2][4];
  LoadRightOfRows(k, kStride, right[0]);
#pragma unroll
  for (int i = 0; i < kSteps * kPairs; ++i) {
    const int n = i % kPairs * 2, step = i / kPairs, next = i + 1;
    if (n == 0) {
#pragma unroll
      for (int m = 0; m < 2; ++m) LoadLeft(q + m * kTile * kStride + step * 16, kStride, left[m]);
    }
    if (next < kSteps * kPairs) {
      const T* const from = k + next % kPairs * 16 * kStride + next / kPairs * 16;
      LoadRightOfRows(from, kStride, right[next % 2]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      MultiplyAdd<T>(left[m], right[i % 2], scores[m][n]);
      MultiplyAdd<T>(left[m], right[i % 2] + 2, scores[m][n + 1]);
    }
  }
}

// Of the two rows of a tile that a thread has parts of: log2 of the largest exponential, and their
// sum after division by that.
struct SoftmaxRows {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

// Turns the scores of a tile's queries, from `first` on, into exp(score - largest), not divided
// yet.
template <int kWarps, bool kCausal>
__device__ SoftmaxRows Exponentials(int first, int time, float (&scores)[4 * kWarps][4]) {
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int lane = threadIdx.x % 32;
  SoftmaxRows rows;
#pragma unroll
  for (int n = 0; n < 4 * kWarps; ++n) {
    if (kCausal || n >= 4 * (kWarps - 1)) {  // else the block would have fewer warps
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = n * 8 + lane % 4 * 2 + e % 2, query = first + lane / 4 + e / 2 * 8;
        if (key >= time || (kCausal && key > query)) scores[n][e] = -INFINITY;
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) rows.most[e / 2] = fmaxf(rows.most[e / 2], scores[n][e]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.most[i] = MaximumOfFour(rows.most[i]) * scale;
#pragma unroll
  for (int n = 0; n < 4 * kWarps; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[n][e] = PowerOfTwo(scores[n][e] * scale - rows.most[e / 2]);
      rows.sum[e / 2] += scores[n][e];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.sum[i] = SumOfFour(rows.sum[i]);
  return rows;
}

// What the tile's queries see, and the sums that the backward pass needs.
template <typename T>
__device__ void StoreTile(const HeadArguments<T>& f, const SoftmaxRows& rows, int first, T* staged,
                          float (&out)[kTiles][4]) {
  const int time = static_cast<int>(f.shape.time), lane = threadIdx.x % 32;
  const float shares[2] = {__fdividef(1, rows.sum[0]), __fdividef(1, rows.sum[1])};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] *= shares[e / 2];
  }
  NarrowRows narrow;
  Narrow<T>(out, narrow);
  StageRows(narrow, staged);
  StoreStaged(staged, first, time, f.out + f.At(f.DenseRow()), static_cast<int>(f.DenseRow()));
  if (f.sums == nullptr || lane % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = first + lane / 4 + i * 8;
    if (query < time) f.sums[f.AtSums() + query] = rows.most[i] + __log2f(rows.sum[i]);
  }
}

template <int kWarps, bool kCausal, typename T>
__global__ void __launch_bounds__(kWarps * 32, kForwardBlocks<kWarps>)
    ForwardKernel(HeadArguments<T> f) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* const q = reinterpret_cast<T*>(memory);
  T *const k = q + kTileNumbers<kWarps>, *const v = k + kTileNumbers<kWarps>;
  const int time = static_cast<int>(f.shape.time);
  LoadPlain<kWarps>(f.v + f.At(f.shape.row), static_cast<int>(f.shape.row), time, v);
  LoadTurned<kWarps>(f, q, k);
  WaitForPlain();
  __syncthreads();
  const int first = threadIdx.x / 32 * kRows;
  AllScores<kWarps> scores = {};
  Scores<kWarps>(q + first * kStride, k, scores);
  SoftmaxRows rows[2];
  uint32_t left[2 * kWarps][2][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    rows[m] = Exponentials<kWarps, kCausal>(first + m * kTile, time, scores[m]);
#pragma unroll
    for (int step = 0; step < 2 * kWarps; ++step) {
      AsLeft<T>(scores[m][2 * step], scores[m][2 * step + 1], left[step][m]);
    }
  }
  float out[2][kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < 2 * kWarps; ++step) {
    MultiplyRows(left[step], v + step * 16 * kStride, out);
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    StoreTile(f, rows[m], first + m * kTile, q + (first + m * kTile) * kStride, out[m]);
  }
}

// Code that was made for an older architecture, and translated for this device as the program was
// loaded, has none of the instructions that multiply.
bool IsMadeForMatrixUnits() {
  constexpr int kFirst = 80;  // cuda_matrix_units.cuh
  cudaFuncAttributes made = {};
  const cudaError_t error = cudaFuncGetAttributes(&made, ForwardKernel<1, true, __half>);
  return error == cudaSuccess && made.ptxVersion >= kFirst;
}

}  // namespace

bool TakesShortAttention(Type type, int64_t time) {
  if (type == Type::kFloat || time < 1 || time > kMostShortPositions) return false;
  static const bool made_for_matrix_units = IsMadeForMatrixUnits();
  int device = 0, major = 0, most = 0;
  if (!made_for_matrix_units || cudaGetDevice(&device) != cudaSuccess) return false;
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
    WithWarpsAndMask(shape, [&](auto warps, auto causal) {
      constexpr int kWarps = decltype(warps)::value;
      Launch(ForwardKernel<kWarps, decltype(causal)::value, T>, kWarps, kForwardBytes<kWarps>,
             ArgumentsOf<T>(shape, pointers), stream);
    });
  });
}

}  // namespace espalier::cuda
