// The product of one row with a weight, as a decoder makes it for a new position: it takes as long
// as the weight is read. What feeds the product (a norm, SwiGLU) is made by every block for itself,
// and the first part of the weight is asked for before the kernel that makes the input has ended.
// Of more rows the library's products are as fast.
#include <cstdint>
#include <type_traits>

#include "worker/kernels/cuda/cuda_after.cuh"
#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

constexpr int kWarps = 8;              // of a block, which share its columns' inner dimension
constexpr int kTile = 16;              // columns of a block, rows of the matrix units' left side
constexpr int kCount = 8;              // numbers that a thread takes at once
constexpr int kStep = 64;              // numbers of the inner dimension that a warp takes at once
constexpr int kAhead = 2;              // steps that a warp asks for before it computes with them
constexpr int64_t kStaged = 40 << 10;  // bytes of shared memory for the input

// Eight narrow numbers.
struct Quad {
  uint32_t at[4];
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

// sum += a b, of 16 x 16 and 16 x 8 numbers that the threads of a warp hold.
template <typename T>
__device__ void MultiplyAdd(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Of two columns, rows of the weight, that a thread has a part of, and for one step: eight numbers
// of each half of the step. The inner dimension is taken in an order of its own, the same on both
// sides, so that what a thread holds lies side by side in memory.
struct WeightPart {
  Quad upper[2], lower[2];
};

template <typename T>
__device__ WeightPart LoadWeight(const T* upper, const T* lower, int64_t at) {
  WeightPart part;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    part.upper[half] = LoadOnce(upper + at + half * (kStep / 2));
    part.lower[half] = LoadOnce(lower + at + half * (kStep / 2));
  }
  return part;
}

template <typename T>
__device__ void Multiply(float (&sum)[4], const WeightPart& w, const Quad (&x)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Quad &u = w.upper[half], &l = w.lower[half], &b = x[half];
    MultiplyAdd<T>(sum, u.at[0], l.at[0], u.at[1], l.at[1], b.at[0], b.at[1]);
    MultiplyAdd<T>(sum, u.at[2], l.at[2], u.at[3], l.at[3], b.at[2], b.at[3]);
  }
}

// Writes the input to shared memory, of a norm without its factor; returns this thread's part of
// the sum of squares that gives the factor.
template <typename T, OneRow::Input kInput>
__device__ float Stage(const OneRow& f, T* staged) {
  const T* x = static_cast<const T*>(f.x);
  float squares = 0;
  for (int64_t c = threadIdx.x * kCount; c < f.inner; c += kWarps * 32 * kCount) {
    float v[kCount], other[kCount];
    Load(x + c, v);
    if constexpr (kInput == OneRow::Input::kNormal) {
      Load(f.norm + c, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        squares += v[i] * v[i];
        v[i] *= other[i];
      }
    }
    if constexpr (kInput == OneRow::Input::kSwiGlu) {
      Load(static_cast<const T*>(f.up) + c, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] *= other[i] / (1.0F + __expf(-v[i]));
    }
    Store(v, staged + c);
  }
  return squares;
}

// This warp's part of the sums, whose first column is x's.
template <typename T>
__device__ void SumUp(const OneRow& f, const T* upper, const T* lower, const T* staged,
                      WeightPart (&ahead)[kAhead], float (&sum)[4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int steps = static_cast<int>(f.inner / kStep);
  for (int begin = warp; begin < steps; begin += kAhead * kWarps) {
    WeightPart now[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      now[i] = ahead[i];
      const int next = begin + (kAhead + i) * kWarps;
      if (next < steps) ahead[i] = LoadWeight(upper, lower, int64_t{next} * kStep);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = begin + i * kWarps;
      if (step >= steps) break;
      Quad right[2] = {};
      if (lane < 4) {
        const T* from = staged + step * kStep + lane * kCount;
        right[0] = *reinterpret_cast<const Quad*>(from);
        right[1] = *reinterpret_cast<const Quad*>(from + kStep / 2);
      }
      Multiply<T>(sum, now[i], right);
    }
  }
}

template <typename T, OneRow::Input kInput>
__global__ void __launch_bounds__(kWarps * 32)
    OneRowKernel(OneRow f, const T* weight, const T* residual, T* y) {
  extern __shared__ uint4 memory[];
  __shared__ float sums[kWarps][kTile];
  T* staged = reinterpret_cast<T*>(memory);
  LetNextBegin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, part = lane % 4;
  const int64_t first = int64_t{blockIdx.x} * kTile, last = f.columns - 1;
  const T* upper = weight + min(first + group, last) * f.inner + part * kCount;
  const T* lower = weight + min(first + group + 8, last) * f.inner + part * kCount;
  WeightPart ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int64_t at = int64_t{warp + i * kWarps} * kStep;
    if (at < f.inner) ahead[i] = LoadWeight(upper, lower, at);
  }
  AfterKernelsBefore();
  const float squares = Stage<T, kInput>(f, staged);
  __syncthreads();
  float sum[4] = {};
  SumUp(f, upper, lower, staged, ahead, sum);
  if (part == 0) {
    sums[warp][group] = sum[0];
    sums[warp][group + 8] = sum[2];
  }
  float factor = 1;
  if constexpr (kInput == OneRow::Input::kNormal) {
    factor = rsqrtf(Reduce(squares) / static_cast<float>(f.inner) + f.eps);
  }
  __syncthreads();
  const int64_t column = first + threadIdx.x;
  if (threadIdx.x >= kTile || column > last) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][threadIdx.x];
  const float added = residual == nullptr ? 0.0F : ToFloat(residual[column]);
  y[column] = FromFloat<T>(total * factor + added);
}

}  // namespace

bool TakesOneRow(Type type, const OneRow& f) {
  return type != Type::kFloat && f.columns > 0 && f.inner > 0 && f.inner % kStep == 0 &&
         f.inner * static_cast<int64_t>(sizeof(uint16_t)) <= kStaged;
}

void OneRowProduct(Type type, const OneRow& f, const void* weight, const void* residual, void* y,
                   Stream stream) {
  using Input = OneRow::Input;
  const Grid grid{dim3(static_cast<unsigned>((f.columns + kTile - 1) / kTile)), dim3(kWarps * 32),
                  static_cast<unsigned>(f.inner * sizeof(uint16_t))};
  const auto of = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto launch = [&](auto input) {
      LaunchAfter(OneRowKernel<T, input.value>, grid, stream, f, static_cast<const T*>(weight),
                  static_cast<const T*>(residual), static_cast<T*>(y));
    };
    switch (f.input) {
      case Input::kPlain:
        return launch(std::integral_constant<Input, Input::kPlain>());
      case Input::kNormal:
        return launch(std::integral_constant<Input, Input::kNormal>());
      case Input::kSwiGlu:
        return launch(std::integral_constant<Input, Input::kSwiGlu>());
    }
  };
  type == Type::kHalf ? of(static_cast<__half*>(nullptr))
                      : of(static_cast<__nv_bfloat16*>(nullptr));
}

}  // namespace espalier::cuda
