// silu(x gate') * (x up'), with or without those two, on Hopper. Blocks stay, two to a
// cluster, and take tile after tile: each 128 rows of its own and 192 rows of weights that both
// have, so that each fetches one half of those for both. One warp group fetches; two multiply by
// turns, a tile each: while one writes what its sums come to, the other one has the matrix units.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "worker/kernels/cuda/cuda_hopper_product.h"

#if CUDART_VERSION >= 12000  // older compilers do not know Hopper
#include "worker/kernels/cuda/cuda_hopper.cuh"
#include "worker/kernels/cuda/cuda_hopper_map.cuh"
#include "worker/kernels/cuda/cuda_hopper_multiply.cuh"
#include "worker/kernels/cuda/cuda_hopper_write.cuh"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

using hopper::Barrier;
using hopper::kColumns;
using hopper::kGroupThreads;
using hopper::kHalves;
using hopper::kRows;
using hopper::kSecond;
using hopper::kTileColumns;
using hopper::Out;
using hopper::Sums;

constexpr int kGroups = 2;
constexpr int kStages = 4;
constexpr int kBlocks = 2;  // of a cluster

template <typename T>
struct Stage {
  T x[kRows * kTileColumns];
  T weights[2 * kColumns * kTileColumns];  // 96 rows, then the other 96
};

template <typename T>
struct Shared {
  Stage<T> stages[kStages];
  Out<T> out[kGroups];
  Barrier filled[kStages], emptied[kStages];
};

struct Maps {
  CUtensorMap x, first, second, y, products;
};

// Tiles of a cluster's size, of which clusters that run together have near ones: `kNear` rows of
// them are gone through column by column.
struct Tiles {
  static constexpr int kNear = 8;
  int across, down;
  int steps;  // of 64 inner columns

  __host__ __device__ int Count() const { return across * down; }
  struct Place {
    int row, column;
  };
  __device__ Place PlaceOf(int tile, uint32_t rank) const {
    const int before = tile / (kNear * across) * kNear, near = min(kNear, down - before);
    const int in = tile - before * across;
    return {((before + in % near) * kBlocks + static_cast<int>(rank)) * kRows,
            in / near * kColumns};
  }
};

// Where the ring of stages is.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
  __device__ void Skip(int steps) {
    stage += steps;
    parity ^= static_cast<uint32_t>(stage / kStages) & 1U;
    stage %= kStages;
  }
};

template <typename T>
__device__ void FetchTiles(const Maps& maps, const Tiles& tiles, Shared<T>& shared) {
  const uint32_t rank = hopper::RankInCluster();
  const CUtensorMap& weight = rank == 0 ? maps.first : maps.second;
  const int clusters = static_cast<int>(gridDim.x) / kBlocks;
  Turn turn;
  for (int tile = static_cast<int>(blockIdx.x) / kBlocks; tile < tiles.Count(); tile += clusters) {
    const auto [row, column] = tiles.PlaceOf(tile, rank);
    for (int step = 0; step < tiles.steps; ++step, turn.Next()) {
      Stage<T>& stage = shared.stages[turn.stage];
      Barrier& filled = shared.filled[turn.stage];
      shared.emptied[turn.stage].Wait(turn.parity ^ 1);
      filled.Expect(sizeof(Stage<T>));
      hopper::Fetch(maps.x, row, step * kTileColumns, stage.x, filled);
      hopper::FetchForBoth(weight, column, step * kTileColumns,
                           stage.weights + rank * kColumns * kTileColumns, filled);
    }
  }
}

template <bool kKept, typename T>
__device__ __forceinline__ void WriteTile(const Maps& maps, const Tiles& tiles,
                                          const Tiles::Place& at, int group, Sums& sums,
                                          Out<T>& out) {
  if constexpr (kKept) {
    hopper::RoundInPlace<T>(sums);
    const auto gate = [&](int half, int i) { return __float_as_uint(sums[half][i]); };
    const auto up = [&](int half, int i) { return __float_as_uint(sums[half][kSecond + i]); };
    hopper::Write<T>(maps.products, at.row, at.column, group, out, gate);
    hopper::Write<T>(maps.products, at.row, tiles.across * kColumns + at.column, group, out, up);
    hopper::Write<T>(maps.y, at.row, at.column, group, out,
                     [&](int half, int i) { return hopper::Gated<T>(gate(half, i), up(half, i)); });
    return;
  }
  const auto first = [&](int half, int i) {
    return hopper::Rounded<T>(sums[half][2 * i], sums[half][2 * i + 1]);
  };
  const auto second = [&](int half, int i) {
    return hopper::Rounded<T>(sums[half][kSecond + 2 * i], sums[half][kSecond + 2 * i + 1]);
  };
  hopper::Write<T>(maps.y, at.row, at.column, group, out, [&](int half, int i) {
    return hopper::Gated<T>(first(half, i), second(half, i));
  });
}

template <typename T>
__device__ void Release(Shared<T>& shared, int stage) {
  if (threadIdx.x % kGroupThreads < kBlocks) {
    shared.emptied[stage].ArriveAt(threadIdx.x % kGroupThreads);
  }
}

// The warp groups multiply by turns: one that began early would take a stage of a later turn for
// its own, since barriers know odd turns from even ones alone.
struct Order {
  int group;

  // Of the second group, in the beginning: it is the first one's turn.
  __device__ void Begin() const {
    if (group == 1) Pass();
  }
  __device__ void Await() const {
    asm volatile("bar.sync %0, 256;" ::"r"(kFirst + group) : "memory");
  }
  __device__ void Pass() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(kFirst + 1 - group) : "memory");
  }

 private:
  static constexpr int kFirst = 1 + kGroups;  // after those of SyncWarpGroup
};

template <bool kKept, typename T>
__device__ void MultiplyTile(int steps, const Order& order, Turn& turn, Shared<T>& shared,
                             Sums& sums) {
  int former = 0;
  if constexpr (kKept) {
    // What RoundInPlace left must be over before the first product, or else the compiler has each
    // product wait for the one before.
#pragma unroll
    for (int i = 0; i < kHalves * hopper::kProductSums; ++i) {
      sums[i / hopper::kProductSums][i % hopper::kProductSums] = 0;
    }
  }
  order.Await();
  if constexpr (kKept) hopper::BeginProducts();
  for (int step = 0; step < steps; ++step, turn.Next()) {
    const Stage<T>& stage = shared.stages[turn.stage];
    shared.filled[turn.stage].Wait(turn.parity);
    hopper::BeginProducts();
#pragma unroll
    for (int part = 0; part < kTileColumns / 16; ++part) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        hopper::Multiply<T>(
            hopper::Operand(stage.x + half * hopper::kProductRows * kTileColumns, part),
            hopper::Operand(stage.weights, part), step + part > 0, sums[half]);
      }
    }
    hopper::EndGroup();
    if (step > 0) {
      hopper::AwaitGroups<1>();
      Release(shared, former);
    }
    former = turn.stage;
  }
  order.Pass();
  hopper::AwaitGroups<0>();
  Release(shared, former);
}

template <bool kKept, typename T>
__device__ void MultiplyTiles(const Maps& maps, const Tiles& tiles, int group, Shared<T>& shared) {
  const uint32_t rank = hopper::RankInCluster();
  const int clusters = static_cast<int>(gridDim.x) / kBlocks;
  const Order order{group};
  order.Begin();
  Turn turn;
  turn.Skip(group * tiles.steps);
  for (int tile = static_cast<int>(blockIdx.x) / kBlocks + group * clusters; tile < tiles.Count();
       tile += kGroups * clusters) {
    Sums sums;
    MultiplyTile<kKept>(tiles.steps, order, turn, shared, sums);
    turn.Skip((kGroups - 1) * tiles.steps);
    WriteTile<kKept>(maps, tiles, tiles.PlaceOf(tile, rank), group, sums, shared.out[group]);
  }
  if (threadIdx.x % kGroupThreads == 0) hopper::AwaitPuts();
}

template <bool kKept, typename T>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__((1 + kGroups) * kGroupThreads, 1)
    HopperProductKernel(const __grid_constant__ Maps maps, Tiles tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // this code needs compute_90a
  extern __shared__ uint8_t memory[];
  const uint32_t begin = hopper::SharedAddress(memory);
  auto& shared = *reinterpret_cast<Shared<T>*>(memory + ((1024U - begin % 1024U) % 1024U));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      shared.filled[i].Init(1);
      shared.emptied[i].Init(kBlocks);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  hopper::SyncCluster();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kGroups * kGroupThreads) FetchTiles(maps, tiles, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    MultiplyTiles<kKept>(maps, tiles, group, shared);
  }
  __syncthreads();
  hopper::SyncCluster();  // what comes from the other block has a place until then
#endif
}

template <bool kKept, typename T>
void Launch(const Maps& maps, const Tiles& tiles, Stream stream) {
  int device = 0, processors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  constexpr int kBytes = static_cast<int>(sizeof(Shared<T>)) + 1024;
  (void)cudaFuncSetAttribute(HopperProductKernel<kKept, T>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int clusters = std::min(processors / kBlocks, tiles.Count());
  HopperProductKernel<kKept, T>
      <<<clusters * kBlocks, (1 + kGroups) * kGroupThreads, kBytes, Of(stream)>>>(maps, tiles);
}

int64_t Parts(int64_t all, int64_t of) { return (all + of - 1) / of; }

Tiles TilesOf(const HopperProductShape& shape) {
  return {static_cast<int>(Parts(shape.columns, kColumns)),
          static_cast<int>(Parts(shape.rows, kBlocks * kRows)),
          static_cast<int>(Parts(shape.inner, kTileColumns))};
}

}  // namespace

bool TakesHopperProduct(Type type, const HopperProductShape& shape,
                        const HopperProductPointers& pointers) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (type == Type::kFloat || shape.inner % 8 != 0 || shape.columns % 8 != 0) return false;
  if (shape.rows >= kMost || shape.inner >= kMost || shape.columns >= kMost) return false;
  if (shape.rows == 0 || shape.inner == 0 || shape.columns == 0) return false;
  for (const void* address :
       {pointers.x, pointers.gate, pointers.up, static_cast<const void*>(pointers.y),
        static_cast<const void*>(pointers.products)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  int device = 0, major = 0, processors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const Tiles tiles = TilesOf(shape);
  if (pointers.products != nullptr && shape.columns % kColumns != 0) return false;
  return major == 9 && tiles.Count() >= processors / kBlocks && hopper::EncodeOfDriver() != nullptr;
}

bool HopperProduct(Type type, const HopperProductShape& shape,
                   const HopperProductPointers& pointers, Stream stream) {
  constexpr hopper::Tile kOfX = {kRows, kTileColumns, CU_TENSOR_MAP_SWIZZLE_128B},
                         kOfWeight = {kColumns, kTileColumns, CU_TENSOR_MAP_SWIZZLE_128B},
                         kOfY = {kRows, hopper::kOutColumns, CU_TENSOR_MAP_SWIZZLE_64B};
  const RowShape x = {shape.rows, shape.inner}, weight = {shape.columns, shape.inner},
                 y = {shape.rows, shape.columns};
  const bool kept = pointers.products != nullptr;
  Maps maps = {};
  if (!hopper::Describe(type, pointers.x, x, kOfX, maps.x) ||
      !hopper::Describe(type, pointers.gate, weight, kOfWeight, maps.first) ||
      !hopper::Describe(type, pointers.up, weight, kOfWeight, maps.second) ||
      !hopper::Describe(type, pointers.y, y, kOfY, maps.y) ||
      (kept && !hopper::Describe(type, pointers.products, {shape.rows, 2 * shape.columns}, kOfY,
                                 maps.products))) {
    return false;
  }
  const Tiles tiles = TilesOf(shape);
  const auto launch = [&](auto none) {
    using T = std::remove_pointer_t<decltype(none)>;
    kept ? Launch<true, T>(maps, tiles, stream) : Launch<false, T>(maps, tiles, stream);
  };
  type == Type::kHalf ? launch(static_cast<__half*>(nullptr))
                      : launch(static_cast<__nv_bfloat16*>(nullptr));
  return true;
}

}  // namespace espalier::cuda

#else

namespace espalier::cuda {

bool TakesHopperProduct(Type, const HopperProductShape&, const HopperProductPointers&) {
  return false;
}
bool HopperProduct(Type, const HopperProductShape&, const HopperProductPointers&, Stream) {
  return false;
}

}  // namespace espalier::cuda

#endif
