// Attention of one new position of each sequence over what is kept of it. The positions that a
// sequence sees are divided among blocks; the last block to end puts their parts together. Scores
// are powers of two of what is multiplied with log2(e) beforehand.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "worker/kernels/cuda/cuda_after.cuh"
#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

constexpr int kNumbers = 8;         // of a head that a thread holds
constexpr int kWarps = 4;           // of a block
constexpr int kMostHeads = 4;       // of queries that a block computes at once
constexpr int kAtOnce = 2;          // positions whose keys and values a thread asks for at once
constexpr int64_t kLeastSpan = 64;  // positions of a block: fewer parts are put together sooner
constexpr float kLowest = -1e30F;

template <typename T>
struct Pointers {
  const T *q, *k, *v;
  const float *cosine, *sine;
  T *keys, *values;
  const int64_t* positions;
  T* out;
  float* parts;   // [rows, heads, splits, head_dim + 2]
  int* finished;  // [rows, blocks of heads], zero, and zero again in the end
};

// The numbers of a head from `at` on, turned by the angles of its row and rounded to T.
template <typename T>
__device__ void Turned(const T* head, int at, int half, const float* cosine, const float* sine,
                       float (&to)[kNumbers]) {
  Load(head + at, to);
  if (cosine == nullptr) return;
  const bool first = at < half;
  const int angle = first ? at : at - half;
  float other[kNumbers], c[kNumbers], s[kNumbers];
  Load(head + (first ? at + half : at - half), other);
  Load(cosine + angle, c);
  Load(sine + angle, s);
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    const float turned = first ? to[i] * c[i] - other[i] * s[i] : to[i] * c[i] + other[i] * s[i];
    to[i] = ToFloat(FromFloat<T>(turned));
  }
}

__device__ float Factor(float most, float of_all) { return exp2f(most - of_all); }

// What a thread is, and what its block does.
struct Place {
  int warp, lane, group;  // a group has a position at a time, a thread kNumbers of it from `at` on
  int at;
  bool mine;  // whether there are so many
  int row, kv, first, heads;
  int parts;  // blocks that have positions of the row
  int width;  // of what is written of a head: sums, the largest score, the sum of weights
  int64_t begin, end, end_of_row;
  const float *cosine, *sine;
};

// kLanes threads hold a head between them, of a warp that has 32 / kLanes positions at a time.
template <int kHeads, int kLanes, typename T>
__device__ Place PlaceOf(const KeptAttentionShape& f, const Pointers<T>& p) {
  Place o;
  o.warp = threadIdx.x / 32;
  o.lane = threadIdx.x % 32;
  o.group = o.lane / kLanes;
  o.at = o.lane % kLanes * kNumbers;
  o.mine = o.at < f.head_dim;
  const int queries = f.heads / f.kv_heads, blocks = (queries + kHeads - 1) / kHeads;
  const int chunk = blockIdx.y % blocks;
  o.row = blockIdx.z;
  o.kv = blockIdx.y / blocks;
  o.first = o.kv * queries + chunk * kHeads;
  o.heads = min(kHeads, queries - chunk * kHeads);
  o.width = f.head_dim + 2;
  o.end_of_row = p.positions[o.row] + 1;  // of a kernel long before
  const int64_t seen = f.window > 0 ? min(o.end_of_row, int64_t{f.window}) : o.end_of_row;
  const int64_t span = max((seen + f.splits - 1) / f.splits, kLeastSpan);
  o.parts = static_cast<int>((seen + span - 1) / span);
  o.begin = o.end_of_row - seen + blockIdx.x * span;
  o.end = min(o.begin + span, o.end_of_row);
  const int half = f.head_dim / 2;
  o.cosine = p.cosine == nullptr ? nullptr : p.cosine + o.row * half;
  o.sine = p.cosine == nullptr ? nullptr : p.sine + o.row * half;
  return o;
}

// The new position is the last one: the block that has it keeps it first.
template <typename T>
__device__ void KeepNew(const KeptAttentionShape& f, const Pointers<T>& p, const Place& o, T* keys,
                        T* values) {
  if (o.end != o.end_of_row || o.warp > 0 || o.group > 0 || !o.mine) return;
  const int64_t from = o.row * f.stride + o.kv * f.head_dim;
  const int64_t to = (o.end_of_row - 1) * f.head_dim + o.at;
  float number[kNumbers];
  Turned(p.k + from, o.at, f.head_dim / 2, o.cosine, o.sine, number);
  Store(number, keys + to);
  Load(p.v + from + o.at, number);
  Store(number, values + to);
}

// What a thread has of each head: its query, and what it has summed up, relative to the largest
// score.
template <int kHeads>
struct Sums {
  float q[kHeads][kNumbers] = {}, sum[kHeads][kNumbers] = {};
  float most[kHeads], total[kHeads];
};

template <typename T, int kHeads>
__device__ void LoadQueries(const KeptAttentionShape& f, const Pointers<T>& p, const Place& o,
                            Sums<kHeads>& s) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    s.most[h] = kLowest;
    s.total[h] = 0;
    if (!o.mine || h >= o.heads) continue;
    const T* query = p.q + o.row * f.stride + (o.first + h) * f.head_dim;
    Turned(query, o.at, f.head_dim / 2, o.cosine, o.sine, s.q[h]);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) s.q[h][i] *= f.scale;
  }
}

// Adds some positions to what is known of head h; `seen`: how many of them there are.
template <int kLanes, typename T, int kHeads>
__device__ void AddPositions(const Pack<T, kNumbers> (&k)[kAtOnce],
                             const Pack<T, kNumbers> (&v)[kAtOnce], int seen, int h,
                             Sums<kHeads>& s) {
  float score[kAtOnce], most = s.most[h];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    float number[kNumbers], dot = 0;
    Unpack(k[i], number);
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) dot += number[j] * s.q[h][j];
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      dot += __shfl_xor_sync(~0U, dot, offset);
    }
    score[i] = i < seen ? dot : kLowest;
    most = fmaxf(most, score[i]);
  }
  const float factor = Factor(s.most[h], most);
  s.total[h] *= factor;
#pragma unroll
  for (int j = 0; j < kNumbers; ++j) s.sum[h][j] *= factor;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const float weight = i < seen ? exp2f(score[i] - most) : 0.0F;
    float number[kNumbers];
    Unpack(v[i], number);
    s.total[h] += weight;
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) s.sum[h][j] += weight * number[j];
  }
  s.most[h] = most;
}

// Positions whose keys and values a thread has asked for, of those that its group sees.
template <typename T, int kLanes>
struct Round {
  static constexpr int kGroups = 32 / kLanes, kStep = kWarps * kGroups;
  Pack<T, kNumbers> k[kAtOnce] = {}, v[kAtOnce] = {};
  int seen = 0;

  static __device__ int64_t First(const Place& o) { return o.begin + o.warp * kGroups + o.group; }

  // From `base` on, without the new position unless `all`.
  __device__ void Ask(const KeptAttentionShape& f, const Place& o, const T* keys, const T* values,
                      int64_t base, bool all) {
    seen = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t position = base + i * kStep;
      if (position >= o.end) continue;
      seen = i + 1;
      if (all || position + 1 < o.end_of_row) AskOne(f, o, keys, values, position, i);
    }
  }
  __device__ void AskNew(const KeptAttentionShape& f, const Place& o, const T* keys,
                         const T* values) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t position = First(o) + i * kStep;
      if (position < o.end && position + 1 == o.end_of_row) AskOne(f, o, keys, values, position, i);
    }
  }

 private:
  __device__ void AskOne(const KeptAttentionShape& f, const Place& o, const T* keys,
                         const T* values, int64_t position, int i) {
    if (!o.mine) return;
    k[i] = LoadPack<kNumbers>(keys + position * f.head_dim + o.at);
    v[i] = LoadPack<kNumbers>(values + position * f.head_dim + o.at);
  }
};

template <int kLanes, typename T, int kHeads>
__device__ void SeePositions(const KeptAttentionShape& f, const Place& o, const T* keys,
                             const T* values, Round<T, kLanes> now, Sums<kHeads>& s) {
  constexpr int64_t kRound = int64_t{Round<T, kLanes>::kStep} * kAtOnce;
  for (int64_t base = Round<T, kLanes>::First(o); base - o.group < o.end; base += kRound) {
    Round<T, kLanes> next;
    next.Ask(f, o, keys, values, base + kRound, /*all=*/true);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) AddPositions<kLanes>(now.k, now.v, now.seen, h, s);
    now = next;
  }
}

// Puts the groups of a warp together, and writes what they come to: memory [kWarps, kHeads, width].
template <int kLanes, int kHeads>
__device__ void JoinGroups(const KeptAttentionShape& f, const Place& o, Sums<kHeads>& s,
                           float* memory) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2) {
      const float most = __shfl_xor_sync(~0U, s.most[h], offset);
      const float larger = fmaxf(most, s.most[h]);
      const float factor = Factor(s.most[h], larger), other = Factor(most, larger);
      s.total[h] = s.total[h] * factor + __shfl_xor_sync(~0U, s.total[h], offset) * other;
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) {
        s.sum[h][j] = s.sum[h][j] * factor + __shfl_xor_sync(~0U, s.sum[h][j], offset) * other;
      }
      s.most[h] = larger;
    }
    float* to = memory + (o.warp * kHeads + h) * o.width;
    if (o.group == 0 && o.mine) {
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) to[o.at + j] = s.sum[h][j];
    }
    if (o.lane == 0) {
      to[f.head_dim] = s.most[h];
      to[f.head_dim + 1] = s.total[h];
    }
  }
}

// Puts the warps together: to the result, or to this block's part of it.
template <int kHeads, typename T>
__device__ void JoinWarps(const KeptAttentionShape& f, const Pointers<T>& p, const Place& o,
                          const float* memory) {
  for (int i = threadIdx.x; i < o.heads * f.head_dim; i += kWarps * 32) {
    const int h = i / f.head_dim, number = i % f.head_dim, head = o.row * f.heads + o.first + h;
    const auto of_warp = [&](int w, int n) { return memory[(w * kHeads + h) * o.width + n]; };
    float most = kLowest, total = 0, value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, of_warp(w, f.head_dim));
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = Factor(of_warp(w, f.head_dim), most);
      total += factor * of_warp(w, f.head_dim + 1);
      value += factor * of_warp(w, number);
    }
    if (o.parts == 1) {
      p.out[head * f.head_dim + number] = FromFloat<T>(value / total);
      continue;
    }
    float* to = p.parts + (int64_t{head} * f.splits + blockIdx.x) * o.width;
    to[number] = value;
    if (number > 0) continue;
    to[f.head_dim] = most;
    to[f.head_dim + 1] = total;
  }
}

// Whether all other blocks of the row have written their parts, which can be read then.
__device__ bool IsLast(int* finished, int parts) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(finished, 1) == parts - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// Puts the blocks' parts together, by factors that each warp makes of a head, a thread of a part:
// factors [heads, splits].
template <typename T>
__device__ void JoinBlocks(const KeptAttentionShape& f, const Pointers<T>& p, const Place& o,
                           float* factors) {
  const int64_t first = int64_t{o.row} * f.heads + o.first;
  for (int h = o.warp; h < o.heads; h += kWarps) {
    const float* of = p.parts + (first + h) * f.splits * o.width + f.head_dim;
    float most = kLowest, total = 0;
    for (int n = o.lane; n < o.parts; n += 32) most = fmaxf(most, of[n * o.width]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      most = fmaxf(most, __shfl_xor_sync(~0U, most, offset));
    }
    for (int n = o.lane; n < o.parts; n += 32) {
      const float factor = Factor(of[n * o.width], most);
      factors[h * f.splits + n] = factor;
      total += factor * of[n * o.width + 1];
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0U, total, offset);
    for (int n = o.lane; n < o.parts; n += 32) factors[h * f.splits + n] /= total;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < o.heads * f.head_dim; i += kWarps * 32) {
    const int h = i / f.head_dim, number = i % f.head_dim;
    const float* of = p.parts + (first + h) * f.splits * o.width + number;
    float value = 0;
#pragma unroll 8
    for (int n = 0; n < o.parts; ++n) value += factors[h * f.splits + n] * of[n * o.width];
    p.out[(first + h) * f.head_dim + number] = FromFloat<T>(value);
  }
}

template <typename T, int kHeads, int kLanes>
__global__ void __launch_bounds__(kWarps * 32, kHeads < kMostHeads ? 4 : 3)
    KeptAttentionKernel(KeptAttentionShape f, Pointers<T> p) {
  extern __shared__ float memory[];
  LetNextBegin();
  const Place place = PlaceOf<kHeads, kLanes>(f, p);
  const int64_t kept = (int64_t{place.row} * f.kv_heads + place.kv) * f.capacity * f.head_dim;
  T *keys = p.keys + kept, *values = p.values + kept;
  const bool some = static_cast<int>(blockIdx.x) < place.parts;
  Round<T, kLanes> round;
  if (some) round.Ask(f, place, keys, values, round.First(place), /*all=*/false);
  AfterKernelsBefore();
  if (!some) return;
  KeepNew(f, p, place, keys, values);
  Sums<kHeads> sums;
  LoadQueries(f, p, place, sums);
  __syncthreads();
  round.AskNew(f, place, keys, values);
  SeePositions(f, place, keys, values, round, sums);
  JoinGroups<kLanes>(f, place, sums, memory);
  __syncthreads();
  JoinWarps<kHeads>(f, p, place, memory);
  if (place.parts == 1) return;
  int* finished = p.finished + place.row * gridDim.y + blockIdx.y;
  if (!IsLast(finished, place.parts)) return;
  JoinBlocks(f, p, place, memory);
  if (threadIdx.x == 0) *finished = 0;
}

template <typename T, int kHeads>
void WithLanes(const KeptAttentionShape& f, const Pointers<T>& p, Stream stream) {
  const int blocks = (f.heads / f.kv_heads + kHeads - 1) / kHeads;
  const Grid grid{dim3(static_cast<unsigned>(f.splits), static_cast<unsigned>(f.kv_heads * blocks),
                       static_cast<unsigned>(f.rows)),
                  dim3(kWarps * 32),
                  static_cast<unsigned>(kHeads * std::max(kWarps * (f.head_dim + 2), f.splits) *
                                        sizeof(float))};
  const int lanes = f.head_dim / kNumbers;
  if (lanes <= 4) return LaunchAfter(KeptAttentionKernel<T, kHeads, 4>, grid, stream, f, p);
  if (lanes <= 8) return LaunchAfter(KeptAttentionKernel<T, kHeads, 8>, grid, stream, f, p);
  if (lanes <= 16) return LaunchAfter(KeptAttentionKernel<T, kHeads, 16>, grid, stream, f, p);
  LaunchAfter(KeptAttentionKernel<T, kHeads, 32>, grid, stream, f, p);
}

}  // namespace

// Some blocks for each multiprocessor of a large device.
int KeptAttentionSplits(int64_t rows, int64_t kv_heads) {
  constexpr int64_t kBlocks = 1056, kMost = 64;
  return static_cast<int>(std::clamp<int64_t>(kBlocks / (rows * kv_heads), 1, kMost));
}

void KeptAttention(Type type, const KeptAttentionShape& f, const KeptAttentionPointers& p,
                   Stream stream) {
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const Pointers<T> of{static_cast<const T*>(p.q),
                         static_cast<const T*>(p.k),
                         static_cast<const T*>(p.v),
                         p.cosine,
                         p.sine,
                         static_cast<T*>(p.keys),
                         static_cast<T*>(p.values),
                         p.positions,
                         static_cast<T*>(p.out),
                         p.parts,
                         p.finished};
    const int queries = f.heads / f.kv_heads;
    if (queries == 1) return WithLanes<T, 1>(f, of, stream);
    if (queries == 2) return WithLanes<T, 2>(f, of, stream);
    if (queries == 3) return WithLanes<T, 3>(f, of, stream);
    WithLanes<T, kMostHeads>(f, of, stream);
  });
}

}  // namespace espalier::cuda
