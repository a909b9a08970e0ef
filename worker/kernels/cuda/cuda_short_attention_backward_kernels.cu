#include "worker/kernels/cuda/cuda_short_rows.cuh"

// A warp's positions are keys, so that the gradients of k and v are sums of one warp; that of q is
// made from the gradients of the scores, which lie in shared memory (Dao 2023, section 3.1, with
// the scores made again). Probabilities and gradients of scores are rounded, and stay in registers;
// the three gradients are made one after the other, so that those of a warp's rows fit beside.
namespace espalier::cuda {
namespace {

// As kForwardBlocks.
template <int kWarps>
constexpr int kBackwardBlocks = kWarps == 3   ? 4
                                : kWarps == 4 ? 2
                                              : 0;

// Writes a tile's rows, `scale` times, from the gradient of rows turned to that of rows.
template <typename T>
__device__ void StoreTurnedBack(const HeadArguments<T>& f, int first, float scale,
                                float (&rows)[kTiles][4], T* staged, T* to) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) rows[n][e] *= scale;
  }
  NarrowRows narrow;
  Narrow<T>(rows, narrow);
  const int row_step = static_cast<int>(f.shape.grad_row), row = PairRow(), c = PairColumn();
  const int time = static_cast<int>(f.shape.time);
  Angles angles[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) angles[i] = LoadAngles(f, min(first + row + i * 8, time - 1));
  StageRows(narrow, staged);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int position = first + row + i * 8;
    const T* const from = staged + (row + i * 8) * kStride + c;
    if (position >= time) continue;
    Turn<true>(LoadWords(from), LoadWords(from + kHalf), angles[i], to + (position * row_step + c));
  }
}

// The gradient of out, and of each position its product with out, which is the sum over keys of
// probability times its gradient.
template <int kWarps, typename T>
__device__ void LoadGradient(const HeadArguments<T>& f, T* dout, float* products) {
  constexpr int kAtOnce = 4;
  const int step = static_cast<int>(f.DenseRow()), last = static_cast<int>(f.shape.time) - 1;
  const int c = threadIdx.x % 8 * 8;
  const int64_t at = f.At(f.DenseRow()) + c;
#pragma unroll
  for (int begin = 0; begin < 8; begin += kAtOnce) {
    Words gradients[kAtOnce], outs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int from =
          min(static_cast<int>(threadIdx.x) / 8 + (begin + i) * kWarps * 4, last) * step;
      gradients[i] = LoadWords(f.dout + at + from);
      outs[i] = LoadWords(f.out + at + from);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = threadIdx.x / 8 + (begin + i) * kWarps * 4;
      *reinterpret_cast<Words*>(dout + row * kStride + c) = gradients[i];
      float product = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float gradient[2], out[2];
        Unpacked<T>(gradients[i].at[j], gradient);
        Unpacked<T>(outs[i].at[j], out);
        product += gradient[0] * out[0] + gradient[1] * out[1];
      }
#pragma unroll
      for (int offset = 4; offset > 0; offset /= 2) {
        product += __shfl_xor_sync(~0U, product, offset);
      }
      if (c == 0) products[row] = product;
    }
  }
}

// What a block has in shared memory.
template <int kWarps, typename T>
struct BackwardMemory {
  static constexpr int kScores = kScoreStride<kWarps>;
  explicit __device__ BackwardMemory(unsigned char* memory)
      : q(reinterpret_cast<T*>(memory)),
        k(q + kTileNumbers<kWarps>),
        v(k + kTileNumbers<kWarps>),
        dout(v + kTileNumbers<kWarps>),
        dscores(v),
        staged(dscores + kScoreNumbers<kWarps> + threadIdx.x / 32 * kStagedNumbers),
        sums(reinterpret_cast<float*>(v + kSharedNumbers<kWarps>)),
        products(sums + kPositions<kWarps>) {}

  T *q, *k, *v, *dout;
  T *dscores, *staged;  // in place of v and dout
  float *sums, *products;
};

// Of a warp's keys, in two tiles, and of all queries, 16 at a time, as left factors.
template <int kWarps>
using KeyRows = uint32_t[2 * kWarps][2][4];

// A warp's rows of x, as left factors.
template <typename T>
__device__ void LoadKeys(const T* x, uint32_t (&to)[kSteps][2][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int m = 0; m < 2; ++m) LoadLeft(x + m * kTile * kStride + step * 16, kStride, to[step][m]);
  }
}

// Their products with 16 rows of x.
template <typename T>
__device__ void KeyProducts(const uint32_t (&keys)[kSteps][2][4], const T* x,
                            float (&to)[2][2][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t right[4];
    LoadRightOfRows(x + step * 16, kStride, right);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      MultiplyAdd<T>(keys[step][m], right, to[m][0]);
      MultiplyAdd<T>(keys[step][m], right + 2, to[m][1]);
    }
  }
}

// The probabilities of a warp's keys. A query that does not exist has an infinite sum, and so none;
// a key that does not exist those of the last one.
template <int kWarps, bool kCausal, typename T>
__device__ void Probabilities(const BackwardMemory<kWarps, T>& s, int first, KeyRows<kWarps>& to) {
  const float scale = kLog2E / sqrtf(static_cast<float>(kDim));
  const int lane = threadIdx.x % 32;
  uint32_t keys[kSteps][2][4];
  LoadKeys(s.k + first * kStride, keys);
#pragma unroll
  for (int j = 0; j < 2 * kWarps; ++j) {
    float p[2][2][4] = {};
    KeyProducts(keys, s.q + j * 16 * kStride, p);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const Pack<float, 2> sum = LoadPack<2>(s.sums + j * 16 + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& one = p[m][n][e];
          one = PowerOfTwo(one * scale - sum.at[e % 2]);
          const int key = first + m * kTile + lane / 4 + e / 2 * 8;
          const int query = j * 16 + n * 8 + lane % 4 * 2 + e % 2;
          if (kCausal && key > query) one = 0;
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) AsLeft<T>(p[m][0], p[m][1], to[j][m]);
  }
}

// Turns the probabilities into the gradients of scores.
template <int kWarps, typename T>
__device__ void ScoreGradients(const BackwardMemory<kWarps, T>& s, int first,
                               KeyRows<kWarps>& rows) {
  const int lane = threadIdx.x % 32;
  uint32_t keys[kSteps][2][4];
  LoadKeys(s.v + first * kStride, keys);
#pragma unroll
  for (int j = 0; j < 2 * kWarps; ++j) {
    float d[2][2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const Pack<float, 2> product = LoadPack<2>(s.products + j * 16 + n * 8 + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) d[0][n][e] = d[1][n][e] = -product.at[e % 2];
    }
    KeyProducts(keys, s.dout + j * 16 * kStride, d);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float p[2];
          uint32_t& both = rows[j][m][n * 2 + i];
          Unpacked<T>(both, p);
          both = Packed<T>(p[0] * d[m][n][i * 2], p[1] * d[m][n][i * 2 + 1]);
        }
      }
    }
  }
}

// The gradients of a warp's rows of k or v: `rows` times those of x.
template <int kWarps, typename T>
__device__ void MultiplyAll(const KeyRows<kWarps>& rows, const T* x, float (&to)[2][kTiles][4]) {
#pragma unroll
  for (int j = 0; j < 2 * kWarps; ++j) MultiplyRows(rows[j], x + j * 16 * kStride, to);
}

// Zeros of keys that do not exist.
template <int kWarps, typename T>
__device__ void StoreScores(const BackwardMemory<kWarps, T>& s, int first, int time,
                            const KeyRows<kWarps>& rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 2 * kWarps; ++j) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int key = first + m * kTile + lane / 4;
      T* const to = s.dscores + key * s.kScores + j * 16 + lane % 4 * 2;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        *reinterpret_cast<uint32_t*>(to + e % 2 * 8 * s.kScores + e / 2 * 8) =
            key + e % 2 * 8 < time ? rows[j][m][e] : 0;
      }
    }
  }
}

// The gradients of a warp's queries.
template <int kWarps, typename T>
__device__ void QueryGradients(const BackwardMemory<kWarps, T>& s, int first,
                               float (&dq)[2][kTiles][4]) {
#pragma unroll
  for (int j = 0; j < 2 * kWarps; ++j) {
    uint32_t left[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      LoadLeftOfColumns(s.dscores + j * 16 * s.kScores + first + m * kTile, s.kScores, left[m]);
    }
    MultiplyRows(left, s.k + j * 16 * kStride, dq);
  }
}

template <int kWarps, bool kCausal, typename T>
__global__ void __launch_bounds__(kWarps * 32, kBackwardBlocks<kWarps>)
    BackwardKernel(HeadArguments<T> f) {
  extern __shared__ __align__(16) unsigned char memory[];
  const BackwardMemory<kWarps, T> s(memory);
  const int time = static_cast<int>(f.shape.time);
  LoadPlain<kWarps>(f.v + f.At(f.shape.row), static_cast<int>(f.shape.row), time, s.v);
  LoadTurned<kWarps>(f, s.q, s.k);
  LoadGradient<kWarps>(f, s.dout, s.products);
  const int position = threadIdx.x;
  s.sums[position] = position < time ? f.sums[f.AtSums() + position] : INFINITY;
  WaitForPlain();
  __syncthreads();

  const int first = threadIdx.x / 32 * kRows;
  const float root = 1 / sqrtf(static_cast<float>(kDim));
  const int64_t at = f.At(f.shape.grad_row);
  KeyRows<kWarps> rows;
  Probabilities<kWarps, kCausal>(s, first, rows);
  __syncwarp();  // here and below: what comes next takes no registers yet
  NarrowRows dv[2];
  {
    float sums[2][kTiles][4] = {};
    MultiplyAll<kWarps>(rows, s.dout, sums);
#pragma unroll
    for (int m = 0; m < 2; ++m) Narrow<T>(sums[m], dv[m]);
  }
  __syncwarp();
  ScoreGradients(s, first, rows);
  __syncthreads();  // of v and dout no more is read
  StoreScores(s, first, time, rows);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    StageRows(dv[m], s.staged);
    StoreStaged(s.staged, first + m * kTile, time, f.dv + at, static_cast<int>(f.shape.grad_row));
  }
  float dk[2][kTiles][4] = {};
  MultiplyAll<kWarps>(rows, s.q, dk);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    StoreTurnedBack(f, first + m * kTile, root, dk[m], s.staged, f.dk + at);
  }
  __syncthreads();  // all gradients of scores are there
  float dq[2][kTiles][4] = {};
  QueryGradients(s, first, dq);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    StoreTurnedBack(f, first + m * kTile, root, dq[m], s.staged, f.dq + at);
  }
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
    WithWarpsAndMask(shape, [&](auto warps, auto causal) {
      constexpr int kWarps = decltype(warps)::value;
      Launch(BackwardKernel<kWarps, decltype(causal)::value, T>, kWarps, kBackwardBytes<kWarps>, f,
             stream);
    });
  });
}

}  // namespace espalier::cuda
