// x weight', or silu(x gate') * (x up'), on Hopper. Blocks stay, two to a cluster, and take tile
// after tile: each 128 rows of its own and 192 rows of weights that both have, so that each fetches
// one half of those for both. One warp group fetches; two multiply by turns, a tile each: while one
// writes what its sums come to, the other one has the matrix units.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "worker/kernels/cuda/cuda_hopper_product.h"

#if CUDART_VERSION >= 12000  // older compilers do not know Hopper
#include "worker/kernels/cuda/cuda_hopper.cuh"
#include "worker/kernels/cuda/cuda_hopper_map.cuh"
#include "worker/kernels/cuda/cuda_hopper_multiply.cuh"
#include "worker/kernels/cuda/cuda_pack.cuh"

namespace espalier::cuda {
namespace {

using hopper::Barrier;
using hopper::kTileColumns;

constexpr int kRows = 128, kColumns = hopper::kProductColumns / 2;  // written at once
constexpr int kHalves = kRows / hopper::kProductRows;
constexpr int kGroupThreads = 128, kGroups = 2;
constexpr int kStages = 4;
constexpr int kBlocks = 2;  // of a cluster
// Of y: rows of 64 bytes, whose 16-byte parts are swapped as 64-byte swizzling says.
constexpr int kOutColumns = 32, kOutRowBytes = 2 * kOutColumns;

template <typename T>
struct Stage {
  T x[kRows * kTileColumns];
  T weights[2 * kColumns * kTileColumns];  // 96 rows, then the other 96
};

// What a warp group writes.
template <typename T>
using Out = T[kColumns / kOutColumns][kRows * kOutColumns];

template <typename T>
struct Shared {
  Stage<T> stages[kStages];
  Out<T> out[kGroups];
  Barrier filled[kStages], emptied[kStages];
};

struct Maps {
  CUtensorMap x, first, second, y;
};

// Tiles of a cluster's size, of which clusters that run together have near ones: `kNear` rows of
// them are gone through column by column.
struct Tiles {
  static constexpr int kNear = 8;
  int across, down;
  int steps;  // of 64 inner columns
  int width;  // columns of y

  __host__ __device__ int Count() const { return across * down; }
  struct Place {
    int row, column;
  };
  __device__ Place PlaceOf(int tile, uint32_t rank) const {
    const int before = tile / (kNear * across) * kNear, near = min(kNear, down - before);
    const int in = tile - before * across;
    return {((before + in % near) * kBlocks + static_cast<int>(rank)) * kRows, in / near * width};
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

template <bool kGated, typename T>
__device__ void FetchTiles(const Maps& maps, const Tiles& tiles, Shared<T>& shared) {
  const uint32_t rank = hopper::RankInCluster();
  const CUtensorMap& weight = rank == 0 ? maps.first : maps.second;
  const int aside = kGated ? 0 : static_cast<int>(rank) * kColumns;  // of the same weight
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
      hopper::FetchForBoth(weight, column + aside, step * kTileColumns,
                           stage.weights + rank * kColumns * kTileColumns, filled);
    }
  }
}

template <typename T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  using Two = __nv_bfloat162;
  static __device__ Two Of(float a, float b) { return __floats2bfloat162_rn(a, b); }
  static __device__ float2 Floats(Two x) { return __bfloat1622float2(x); }
};
template <>
struct Pair<__half> {
  using Two = __half2;
  static __device__ Two Of(float a, float b) { return __floats2half2_rn(a, b); }
  static __device__ float2 Floats(Two x) { return __half22float2(x); }
};

__device__ float Silu(float x) { return x * __fdividef(1.0F, 1.0F + __expf(-x)); }

template <typename T>
__device__ uint32_t Rounded(float a, float b) {
  const auto two = Pair<T>::Of(a, b);
  return reinterpret_cast<const uint32_t&>(two);
}
// Two numbers of y from those of its products, as they are, or would be, in memory.
template <typename T>
__device__ uint32_t Gated(uint32_t gate, uint32_t up) {
  using Two = typename Pair<T>::Two;
  const float2 g = Pair<T>::Floats(reinterpret_cast<const Two&>(gate));
  const float2 u = Pair<T>::Floats(reinterpret_cast<const Two&>(up));
  return Rounded<T>(Silu(g.x) * u.x, Silu(g.y) * u.y);
}

// What a warp group writes: a tile, whose numbers 2 i and 2 i + 1 of a half part(half, i) makes.
// Inlined, so that sums stay in registers.
template <typename T, typename Part>
__device__ __forceinline__ void Write(const CUtensorMap& map, int row, int column, int group,
                                      Out<T>& out, Part part) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % 32;
  const int matrix = lane / 8, line = thread / 32 * 16 + matrix % 2 * 8 + lane % 8;
  if (thread == 0) hopper::AwaitPuts();
  hopper::SyncWarpGroup(1 + group);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const uint32_t begin = (half * hopper::kProductRows + line) * kOutRowBytes;
#pragma unroll
    for (int block = 0; block < kColumns / 8; block += 2) {
      const int i = 2 * block;
      const uint32_t parts[4] = {part(half, i), part(half, i + 1), part(half, i + 2),
                                 part(half, i + 3)};
      const int of_row = block % 4 + matrix / 2;  // in parts of 16 bytes
      hopper::StoreMatrices(
          hopper::SharedAddress(out[block / 4]) + begin + ((of_row ^ (line / 2 % 4)) * 16), parts);
    }
  }
  hopper::FinishWriting();
  hopper::SyncWarpGroup(1 + group);
  if (thread != 0) return;
#pragma unroll
  for (int i = 0; i < kColumns / kOutColumns; ++i) {
    hopper::Put(map, row, column + i * kOutColumns, out[i]);
  }
  hopper::EndPuts();
}

using Sums = float[kHalves][hopper::kProductSums];  // of each half those of both 96 rows

template <bool kGated, typename T>
__device__ __forceinline__ void WriteTile(const CUtensorMap& y, const Tiles::Place& at, int group,
                                          const Sums& sums, Out<T>& out) {
  constexpr int kSecond = hopper::kProductSums / 2;
  const auto first = [&](int half, int i) {
    return Rounded<T>(sums[half][2 * i], sums[half][2 * i + 1]);
  };
  const auto second = [&](int half, int i) {
    return Rounded<T>(sums[half][kSecond + 2 * i], sums[half][kSecond + 2 * i + 1]);
  };
  if constexpr (kGated) {
    Write<T>(y, at.row, at.column, group, out,
             [&](int half, int i) { return Gated<T>(first(half, i), second(half, i)); });
  } else {
    Write<T>(y, at.row, at.column, group, out, first);
    Write<T>(y, at.row, at.column + kColumns, group, out, second);
  }
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

template <typename T>
__device__ void MultiplyTile(int steps, const Order& order, Turn& turn, Shared<T>& shared,
                             Sums& sums) {
  int former = 0;
  order.Await();
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

template <bool kGated, typename T>
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
    MultiplyTile(tiles.steps, order, turn, shared, sums);
    turn.Skip((kGroups - 1) * tiles.steps);
    WriteTile<kGated, T>(maps.y, tiles.PlaceOf(tile, rank), group, sums, shared.out[group]);
  }
  if (threadIdx.x % kGroupThreads == 0) hopper::AwaitPuts();
}

template <bool kGated, typename T>
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
    if (threadIdx.x == kGroups * kGroupThreads) FetchTiles<kGated>(maps, tiles, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    MultiplyTiles<kGated>(maps, tiles, group, shared);
  }
  __syncthreads();
  hopper::SyncCluster();  // what comes from the other block has a place until then
#endif
}

template <bool kGated, typename T>
void Launch(const Maps& maps, const Tiles& tiles, Stream stream) {
  int device = 0, processors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  constexpr int kBytes = static_cast<int>(sizeof(Shared<T>)) + 1024;
  (void)cudaFuncSetAttribute(HopperProductKernel<kGated, T>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int clusters = std::min(processors / kBlocks, tiles.Count());
  HopperProductKernel<kGated, T>
      <<<clusters * kBlocks, (1 + kGroups) * kGroupThreads, kBytes, Of(stream)>>>(maps, tiles);
}

int64_t Parts(int64_t all, int64_t of) { return (all + of - 1) / of; }

Tiles TilesOf(const HopperProductShape& shape, bool gated) {
  const int width = gated ? kColumns : 2 * kColumns;
  return {static_cast<int>(Parts(shape.columns, width)),
          static_cast<int>(Parts(shape.rows, kBlocks * kRows)),
          static_cast<int>(Parts(shape.inner, kTileColumns)), width};
}

}  // namespace

bool TakesHopperProduct(Type type, const HopperProductShape& shape,
                        const HopperProductPointers& pointers) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (type == Type::kFloat || shape.inner % 8 != 0 || shape.columns % 8 != 0) return false;
  if (shape.rows >= kMost || shape.inner >= kMost || shape.columns >= kMost) return false;
  if (shape.rows == 0 || shape.inner == 0 || shape.columns == 0) return false;
  for (const void* address :
       {pointers.x, pointers.weight, pointers.up, static_cast<const void*>(pointers.y)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  int device = 0, major = 0, processors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const Tiles tiles = TilesOf(shape, pointers.up != nullptr);
  return major == 9 && tiles.Count() >= processors / kBlocks && hopper::EncodeOfDriver() != nullptr;
}

bool HopperProduct(Type type, const HopperProductShape& shape,
                   const HopperProductPointers& pointers, Stream stream) {
  constexpr hopper::Tile kOfX = {kRows, kTileColumns, CU_TENSOR_MAP_SWIZZLE_128B},
                         kOfWeight = {kColumns, kTileColumns, CU_TENSOR_MAP_SWIZZLE_128B},
                         kOfY = {kRows, kOutColumns, CU_TENSOR_MAP_SWIZZLE_64B};
  const RowShape x = {shape.rows, shape.inner}, weight = {shape.columns, shape.inner},
                 y = {shape.rows, shape.columns};
  const bool gated = pointers.up != nullptr;
  const void* const second = gated ? pointers.up : pointers.weight;
  Maps maps = {};
  if (!hopper::Describe(type, pointers.x, x, kOfX, maps.x) ||
      !hopper::Describe(type, pointers.weight, weight, kOfWeight, maps.first) ||
      !hopper::Describe(type, second, weight, kOfWeight, maps.second) ||
      !hopper::Describe(type, pointers.y, y, kOfY, maps.y)) {
    return false;
  }
  const Tiles tiles = TilesOf(shape, gated);
  const auto launch = [&](auto none) {
    using T = std::remove_pointer_t<decltype(none)>;
    gated ? Launch<true, T>(maps, tiles, stream) : Launch<false, T>(maps, tiles, stream);
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
