// Draws an id from each row of logits: one kernel gives each part of a row's ids its largest logit
// and the sum of its weights, the other one finds the part in which the draw falls, and the id. The
// weights go in the order of ids, as worker/generation/sample.h has it.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

constexpr int kCount = 8;  // ids of a thread
constexpr int kPart = kThreads * kCount;
constexpr float kNone = -std::numeric_limits<float>::infinity();

// What is known of a part of a row: of no numbers, the largest is none.
struct Part {
  float most;
  int first;   // the first id that has it
  double sum;  // of the weights relative to it
};

// The logits of this thread's ids of a part; behind the last one, none.
template <typename T>
__device__ void LoadIds(const T* row, int64_t columns, int part, float (&to)[kCount]) {
  const int64_t begin = int64_t{part} * kPart + threadIdx.x * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = begin + i < columns ? ToFloat(row[begin + i]) : kNone;
}

__device__ double Weight(float logit, float most, float temperature) {
  return logit == kNone ? 0.0 : exp(static_cast<double>(logit - most) / temperature);
}

// The sum of what the threads before this one have, and in `all` of what all have.
__device__ double SumBefore(double value, double& all) {
  __shared__ double warps[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double other = __shfl_up_sync(~0U, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // a former one may still be reading
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  double before = 0;
  all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  return before + sum - value;
}

// `by` [rows, 2]: the temperature, and what falls on a weight.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumKernel(int64_t columns, const T* logits, const double* by, Part* parts) {
  const int row = blockIdx.y, part = blockIdx.x;
  float logit[kCount], most = kNone;
  bool number = true;
  LoadIds(logits + row * columns, columns, part, logit);
#pragma unroll
  for (const float one : logit) {
    most = fmaxf(most, one);
    number = number && one == one;
  }
  number = __syncthreads_and(number);
  most = Reduce<true>(most);
  const auto temperature = static_cast<float>(by[2 * row]);
  double sum = 0;
  int first = kPart;
#pragma unroll
  for (int i = kCount - 1; i >= 0; --i) {
    if (logit[i] == most) first = threadIdx.x * kCount + i;
    if (temperature > 0 && most > kNone) sum += Weight(logit[i], most, temperature);
  }
  __shared__ int least;
  if (threadIdx.x == 0) least = kPart;
  __syncthreads();
  atomicMin(&least, first);
  double all;
  SumBefore(sum, all);
  if (threadIdx.x > 0) return;
  // A largest value that is infinite says that some are no numbers.
  parts[row * gridDim.x + part] = {number ? most : -kNone, part * kPart + least, all};
}

// The part in which the draw falls, where `u` is drawn; the sum of each becomes what is left of the
// draw where the part begins. Each thread has some neighbours.
__device__ int FindPart(Part* parts, int count, float most, float temperature, double u) {
  __shared__ int found, last;
  const int each = (count + kThreads - 1) / kThreads;
  const int begin = min(count, static_cast<int>(threadIdx.x) * each);
  const int end = min(count, begin + each);
  if (threadIdx.x == 0) {
    found = count;
    last = 0;
  }
  double sum = 0, total;
  for (int i = begin; i < end; ++i) {
    parts[i].sum *= Weight(parts[i].most, most, temperature);
    sum += parts[i].sum;
  }
  const double before = SumBefore(sum, total);
  double rest = u * total - before;
  for (int i = begin; i < end; ++i) {
    const double of_part = parts[i].sum;
    parts[i].sum = rest;
    if (of_part <= 0) continue;
    if (rest < of_part) atomicMin(&found, i);
    atomicMax(&last, i);  // should roundings let the draw fall behind all
    rest -= of_part;
  }
  __syncthreads();
  return found < count ? found : last;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DrawKernel(int64_t columns, int count, const T* logits, const double* by, const Part* all,
               int64_t* ids) {
  extern __shared__ Part parts[];
  __shared__ int chosen, last;
  const int row = blockIdx.x;
  float most = kNone;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    parts[i] = all[row * count + i];
    most = fmaxf(most, parts[i].most);
  }
  most = Reduce<true>(most);
  const auto temperature = static_cast<float>(by[2 * row]);
  if (threadIdx.x == 0) {
    chosen = kPart;
    last = -1;
    for (int i = 0; temperature <= 0 && i < count && chosen == kPart; ++i) {
      if (parts[i].most == most) chosen = parts[i].first;
    }
  }
  __syncthreads();
  if (isinf(most) || temperature <= 0) {
    if (threadIdx.x == 0) ids[row] = isinf(most) ? -1 : chosen;
    return;
  }
  const int part = FindPart(parts, count, most, temperature, by[2 * row + 1]);
  float logit[kCount];
  LoadIds(logits + row * columns, columns, part, logit);
  double weight[kCount], sum = 0, whole;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += weight[i] = Weight(logit[i], most, temperature);
  double rest = parts[part].sum - SumBefore(sum, whole);
  int mine = kPart, behind = -1;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (weight[i] <= 0) continue;
    behind = threadIdx.x * kCount + i;
    rest -= weight[i];
    if (rest < 0) mine = min(mine, behind);
  }
  atomicMin(&chosen, mine);
  atomicMax(&last, behind);
  __syncthreads();
  if (threadIdx.x == 0) ids[row] = part * kPart + (chosen < kPart ? chosen : last);
}

}  // namespace

int64_t DrawBytes(const RowShape& shape) {
  return shape.rows * ((shape.columns + kPart - 1) / kPart) * static_cast<int64_t>(sizeof(Part));
}

void Draw(Type type, const RowShape& shape, const void* logits, const double* by, void* work,
          int64_t* ids, Stream stream) {
  const auto count = static_cast<unsigned>((shape.columns + kPart - 1) / kPart);
  const auto rows = static_cast<unsigned>(shape.rows);
  WithType(type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const T* from = static_cast<const T*>(logits);
    auto* parts = static_cast<Part*>(work);
    SumKernel<<<dim3(count, rows), kThreads, 0, Of(stream)>>>(shape.columns, from, by, parts);
    DrawKernel<<<rows, kThreads, count * sizeof(Part), Of(stream)>>>(
        shape.columns, static_cast<int>(count), from, by, parts, ids);
  });
}

}  // namespace espalier::cuda
