// What memory's own engine has to know of a matrix that it moves by tiles: made by the driver,
// which is not linked but asked for its function. Host code; any thread. Used by
// cuda_hopper_product_kernels.cu.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda::hopper {

// Of the driver, which is not linked.
using Encode = decltype(&cuTensorMapEncodeTiled);
inline Encode EncodeOfDriver() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    const bool have = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return have ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return found;
}

struct Tile {
  int rows, columns;
  CUtensorMapSwizzle swizzle;
};

// Of a dense matrix of 16-bit numbers, row by row, each of whole packs of 16 bytes, at a multiple
// of that. False where the driver does not take it, or is too old to be asked.
inline bool Describe(Type type, const void* data, const RowShape& shape, const Tile& tile,
                     CUtensorMap& map) {
  const auto encode = EncodeOfDriver();
  if (encode == nullptr) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(shape.columns),
                              static_cast<cuuint64_t>(shape.rows)};
  const cuuint64_t row_bytes[] = {2 * static_cast<cuuint64_t>(shape.columns)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(tile.columns),
                            static_cast<cuuint32_t>(tile.rows)};
  const cuuint32_t steps[] = {1, 1};
  const auto of =
      type == Type::kHalf ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(&map, of, 2, const_cast<void*>(data), sizes, row_bytes, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, tile.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace espalier::cuda::hopper
