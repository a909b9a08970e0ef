// The product of one row with a weight, as a decoder makes it for a new position: it takes as long
// as the weight is read. A thread has its part of the row in registers, made there of what feeds
// the product (a norm, SwiGLU), and goes down the block's columns with it; the first of them are
// asked for before the kernel that makes the input has ended. Of more rows the library's products
// are as fast.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "worker/kernels/cuda/cuda_after.cuh"
#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

constexpr int kCount = 8;  // numbers that a thread takes at once
constexpr int kMostThreads = 512;
constexpr int kMostChunks = 4;     // times kCount numbers of the row that a thread has
constexpr int kMostColumns = 512;  // of a block: their sums are in shared memory
constexpr int kLoads = 4;          // of a group of columns, each of kCount numbers
constexpr int kAhead = 3;          // groups that a thread has asked for

// Eight narrow numbers.
struct Quad {
  uint32_t at[kCount / 2];
};

// Read once, and not again before other weights have passed through.
template <typename T>
__device__ Quad LoadOnce(const T* from) {
  Quad q;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(q.at[0]), "=r"(q.at[1]), "=r"(q.at[2]), "=r"(q.at[3])
               : "l"(from));
  return q;
}

template <typename T>
__device__ float2 Two(uint32_t narrow) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&narrow));
  } else {
    return {__uint_as_float(narrow << 16), __uint_as_float(narrow & 0xffff0000U)};
  }
}

template <typename T>
__device__ float Dot(const Quad& w, const float (&x)[kCount], float sum) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float2 two = Two<T>(w.at[i]);
    sum += two.x * x[2 * i];
    sum += two.y * x[2 * i + 1];
  }
  return sum;
}

// This thread's part of the input, of a norm without its factor; returns its part of the sum of
// squares that gives the factor.
template <typename T, OneRow::Input kInput, int kChunks>
__device__ float LoadInput(const OneRow& f, float (&x)[kChunks][kCount]) {
  float squares = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int at = (c * blockDim.x + threadIdx.x) * kCount;
#pragma unroll
    for (float& one : x[c]) one = 0;
    if (at >= f.inner) continue;
    float other[kCount];
    Load(static_cast<const T*>(f.x) + at, x[c]);
    if constexpr (kInput == OneRow::Input::kNormal) {
      Load(f.norm + at, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        squares += x[c][i] * x[c][i];
        x[c][i] *= other[i];
      }
    }
    if constexpr (kInput == OneRow::Input::kSwiGlu) {
      Load(static_cast<const T*>(f.up) + at, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[c][i] *= other[i] / (1.0F + __expf(-x[c][i]));
    }
  }
  return squares;
}

// Of kColumns sums that each thread of a warp has a part of: the one of number lane * kColumns
// / 32.
template <int kColumns>
__device__ float Together(float (&part)[kColumns], int lane) {
  int offset = 16;
#pragma unroll
  for (int half = kColumns / 2; half > 0; half /= 2, offset /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float kept = upper ? part[i + half] : part[i];
      const float given = upper ? part[i] : part[i + half];
      part[i] = kept + __shfl_xor_sync(~0U, given, offset);
    }
  }
#pragma unroll
  for (int left = 16 / kColumns; left > 0; left /= 2) {
    part[0] += __shfl_xor_sync(~0U, part[0], left);
  }
  return part[0];
}

// The columns of a block, and what a thread has asked for of them.
template <typename T, int kChunks>
struct Columns {
  static constexpr int kAtOnce = kChunks >= kLoads ? 1 : kLoads / kChunks;
  struct Group {
    Quad at[kAtOnce][kChunks];
  };

  const T* weight;  // of the first column, where this thread's part begins
  int inner, count;
  Group ahead[kAhead] = {};

  __device__ void Ask(Group& group, int first) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= count) return;
      const T* from = weight + int64_t{first + i} * inner;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int at = c * blockDim.x * kCount;
        if (static_cast<int>(threadIdx.x) * kCount + at < inner)
          group.at[i][c] = LoadOnce(from + at);
      }
    }
  }
  __device__ void Begin() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) Ask(ahead[i], i * kAtOnce);
  }
  // Writes this warp's part of the sums: [count, warps].
  __device__ void SumUp(const float (&x)[kChunks][kCount], float* sums) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int base = 0; base < count; base += kAhead * kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int first = base + i * kAtOnce;
        if (first >= count) return;
        float part[kAtOnce] = {};
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
          for (int c = 0; c < kChunks; ++c) part[j] = Dot<T>(ahead[i].at[j][c], x[c], part[j]);
        }
        Ask(ahead[i], first + kAhead * kAtOnce);
        const float sum = Together(part, lane);
        constexpr int kLanes = 32 / kAtOnce;
        const int column = first + lane / kLanes;
        if (lane % kLanes == 0 && column < count) sums[column * warps + threadIdx.x / 32] = sum;
      }
    }
  }
};

template <typename T, OneRow::Input kInput, int kChunks>
__global__ void __launch_bounds__(kMostThreads)
    OneRowKernel(OneRow f, const T* weight, const T* residual, T* y) {
  extern __shared__ float sums[];
  LetNextBegin();
  const int64_t begin = blockIdx.x * f.columns / gridDim.x;
  const int64_t end = (blockIdx.x + 1) * f.columns / gridDim.x;
  Columns<T, kChunks> columns{weight + begin * f.inner + threadIdx.x * kCount,
                              static_cast<int>(f.inner), static_cast<int>(end - begin)};
  columns.Begin();
  AfterKernelsBefore();
  float x[kChunks][kCount];
  const float squares = LoadInput<T, kInput>(f, x);
  columns.SumUp(x, sums);
  float factor = 1;
  if constexpr (kInput == OneRow::Input::kNormal) {
    factor = rsqrtf(Reduce(squares) / static_cast<float>(f.inner) + f.eps);
  } else {
    __syncthreads();
  }
  const int warps = blockDim.x / 32;
  for (int column = threadIdx.x; column < columns.count; column += blockDim.x) {
    float total = 0;
    for (int w = 0; w < warps; ++w) total += sums[column * warps + w];
    const float added = residual == nullptr ? 0.0F : ToFloat(residual[begin + column]);
    y[begin + column] = FromFloat<T>(total * factor + added);
  }
}

int64_t Multiprocessors() {
  int device = 0, count = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return std::max(count, 1);
}

int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

// As many blocks as run at once share the columns evenly, unless they have not room for the sums.
template <typename T, int kChunks>
void WithChunks(const OneRow& f, const void* weight, const void* residual, void* y, Stream stream) {
  using Input = OneRow::Input;
  const int64_t threads = 32 * Quotient(f.inner, int64_t{32} * kCount * kChunks);
  const int64_t blocks =
      std::min(f.columns, std::max(Multiprocessors(), Quotient(f.columns, kMostColumns)));
  const int64_t most = Quotient(f.columns, blocks);
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                  static_cast<unsigned>(most * threads / 32 * int64_t{sizeof(float)})};
  const auto launch = [&](auto input) {
    LaunchAfter(OneRowKernel<T, input.value, kChunks>, grid, stream, f,
                static_cast<const T*>(weight), static_cast<const T*>(residual), static_cast<T*>(y));
  };
  switch (f.input) {
    case Input::kPlain:
      return launch(std::integral_constant<Input, Input::kPlain>());
    case Input::kNormal:
      return launch(std::integral_constant<Input, Input::kNormal>());
    case Input::kSwiGlu:
      return launch(std::integral_constant<Input, Input::kSwiGlu>());
  }
}

}  // namespace

bool TakesOneRow(Type type, const OneRow& f) {
  return type != Type::kFloat && f.columns > 0 && f.inner > 0 && f.inner % kCount == 0 &&
         f.inner <= int64_t{kMostThreads} * kCount * kMostChunks;
}

void OneRowProduct(Type type, const OneRow& f, const void* weight, const void* residual, void* y,
                   Stream stream) {
  const auto of = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    switch (Quotient(f.inner, int64_t{kMostThreads} * kCount)) {
      case 1:
        return WithChunks<T, 1>(f, weight, residual, y, stream);
      case 2:
        return WithChunks<T, 2>(f, weight, residual, y, stream);
      case 3:
        return WithChunks<T, 3>(f, weight, residual, y, stream);
      default:
        return WithChunks<T, kMostChunks>(f, weight, residual, y, stream);
    }
  };
  type == Type::kHalf ? of(static_cast<__half*>(nullptr))
                      : of(static_cast<__nv_bfloat16*>(nullptr));
}

}  // namespace espalier::cuda
