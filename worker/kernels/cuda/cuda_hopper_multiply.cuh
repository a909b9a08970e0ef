// sums += x weight' for a warp group: 64 rows of x, 192 of the weight, 16 columns of both. Needs
// sm_90a. Used by cuda_hopper_product_kernels.cu and cuda_hopper_write.cuh.
#pragma once

#include "worker/kernels/cuda/cuda_hopper.cuh"

namespace espalier::cuda::hopper {

// Before the first product, and after other accesses to the sums.
inline __device__ void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Those since the one before are a group.
inline __device__ void EndGroup() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kGroups, the latest, are not done.
template <int kGroups>
__device__ void AwaitGroups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

constexpr int kProductRows = 64, kProductColumns = 192;
constexpr int kProductSums = kProductRows * kProductColumns / 128;  // a thread

#define ESPALIER_SUMS_8(sums, at)                                                                 \
  "+f"(sums[at]), "+f"(sums[at + 1]), "+f"(sums[at + 2]), "+f"(sums[at + 3]), "+f"(sums[at + 4]), \
      "+f"(sums[at + 5]), "+f"(sums[at + 6]), "+f"(sums[at + 7])
#define ESPALIER_SUMS_32(sums, at)                                                          \
  ESPALIER_SUMS_8(sums, at), ESPALIER_SUMS_8(sums, at + 8), ESPALIER_SUMS_8(sums, at + 16), \
      ESPALIER_SUMS_8(sums, at + 24)
#define ESPALIER_PRODUCT(type)                                                            \
  asm volatile(                                                                           \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"                                    \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type                        \
      " {"                                                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, "                                                  \
      "%8, %9, %10, %11, %12, %13, %14, %15, "                                            \
      "%16, %17, %18, %19, %20, %21, %22, %23, "                                          \
      "%24, %25, %26, %27, %28, %29, %30, %31, "                                          \
      "%32, %33, %34, %35, %36, %37, %38, %39, "                                          \
      "%40, %41, %42, %43, %44, %45, %46, %47, "                                          \
      "%48, %49, %50, %51, %52, %53, %54, %55, "                                          \
      "%56, %57, %58, %59, %60, %61, %62, %63, "                                          \
      "%64, %65, %66, %67, %68, %69, %70, %71, "                                          \
      "%72, %73, %74, %75, %76, %77, %78, %79, "                                          \
      "%80, %81, %82, %83, %84, %85, %86, %87, "                                          \
      "%88, %89, %90, %91, %92, %93, %94, %95}, "                                         \
      "%96, %97, add, 1, 1, 0, 0;\n}"                                                     \
      : ESPALIER_SUMS_32(sums, 0), ESPALIER_SUMS_32(sums, 32), ESPALIER_SUMS_32(sums, 64) \
      : "l"(x), "l"(weight), "r"(static_cast<int>(add)))

// Thread t of the group has of row 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2) the sums i of the
// columns 8 (i / 4) + t % 4 * 2 + i % 2. `add`: else the sums begin with this product. They are not
// to be looked at before AwaitGroups.
template <typename T>
__device__ void Multiply(uint64_t x, uint64_t weight, bool add, float (&sums)[kProductSums]) {
  if constexpr (std::is_same_v<T, __half>) {
    ESPALIER_PRODUCT("f16");
  } else {
    ESPALIER_PRODUCT("bf16");
  }
}

#undef ESPALIER_PRODUCT
#undef ESPALIER_SUMS_32
#undef ESPALIER_SUMS_8

}  // namespace espalier::cuda::hopper
