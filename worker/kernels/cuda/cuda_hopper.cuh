// What a product kernel of Hopper is made of: barriers in shared memory, tiles that memory's own
// engine moves, and products by a warp group of 128 threads. Tiles are rows of 64 numbers of 16
// bits (128 bytes), whose 16-byte parts are swapped as 128-byte swizzling says, and begin at
// multiples of 1,024 bytes. Needs sm_90a. Used by cuda_hopper_product_kernels.cu and
// cuda_hopper_write.cuh.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace espalier::cuda::hopper {

constexpr int kTileColumns = 64;
constexpr int kTileRowBytes = 2 * kTileColumns;

inline __device__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Of a block in its cluster.
inline __device__ uint32_t RankInCluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

inline __device__ void SyncCluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Threads of one warp group wait for each other; `number` is not 0, which is the whole block's.
inline __device__ void SyncWarpGroup(int number) {
  asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

// Counts arrivals, and bytes that are on their way; its phases are 0, 1, 0, ...
class Barrier {
 public:
  __device__ void Init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()), "r"(arrivals));
  }
  // Arrives, and lets the phase wait for so many bytes.
  __device__ void Expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
  }
  // At the same barrier of a block of the cluster. Nothing that was written becomes visible by it:
  // a fence for that, each time, took a third of a product's time.
  __device__ void ArriveAt(uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(Address()),
        "r"(rank)
        : "memory");
  }
  // Until the phase of that parity is over.
  __device__ void Wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra again;\n}" ::"r"(Address()),
        "r"(parity)
        : "memory");
  }
  __device__ uint32_t Address() const { return SharedAddress(this); }

 private:
  uint64_t word_;
};

// Starts to fetch the tile at (row, column) of what `map` describes; `arrived` hears of its bytes.
inline __device__ void Fetch(const CUtensorMap& map, int row, int column, void* to,
                             const Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(column), "r"(row), "r"(arrived.Address())
      : "memory");
}
// The same for both blocks of a cluster of two: the tile and its bytes come to the same places.
inline __device__ void FetchForBoth(const CUtensorMap& map, int row, int column, void* to,
                                    const Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(column), "r"(row), "r"(arrived.Address()), "h"(static_cast<uint16_t>(3))
      : "memory");
}
// Starts to write a tile, which all threads have written and called FinishWriting after.
inline __device__ void Put(const CUtensorMap& map, int row, int column, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(SharedAddress(from))
      : "memory");
}
inline __device__ void FinishWriting() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
inline __device__ void EndPuts() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all that this thread has put has been read, and its place can be written again.
inline __device__ void AwaitPuts() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Four 8 x 8 parts of a tile, whose rows the lanes name: eight each.
inline __device__ void StoreMatrices(uint32_t address, const uint32_t (&parts)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(parts[0]), "r"(parts[1]), "r"(parts[2]), "r"(parts[3])
               : "memory");
}

// A tile as an operand, from its `step`th 16 columns on.
inline __device__ uint64_t Operand(const void* tile, int step) {
  constexpr uint64_t kSwizzled = uint64_t{1} << 62, kEightRows = 8 * kTileRowBytes / 16;
  const uint64_t begin = (SharedAddress(tile) + step * 32U) / 16U;
  return kSwizzled | kEightRows << 32 | uint64_t{1} << 16 | begin;
}

}  // namespace espalier::cuda::hopper
