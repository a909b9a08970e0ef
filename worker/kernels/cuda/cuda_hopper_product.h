// The first half of a gated feed forward on Hopper, y = silu(x gate') * (x up'), whose two products
// are written too or do not go through memory. Numbers have 16 bits, sums are fp32. Implemented in
// cuda_hopper_product_kernels.cu, called by worker/ops/cuda_product.cc. Used by worker/ops. Any
// thread.
#pragma once

#include <cstdint>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

struct HopperProductShape {
  int64_t rows, inner, columns;
};

// Dense.
struct HopperProductPointers {
  const void* x;     // [rows, inner]
  const void* gate;  // [columns, inner]
  const void* up;    // the same
  void* y;           // [rows, columns]
  // x gate' and x up' side by side: [rows, 2 columns], columns a multiple of 96; null: not written.
  void* products = nullptr;
};

// Whether the current device has the instructions, rows are of whole packs of 16 bytes at multiples
// of that, and there is work for all of the device.
bool TakesHopperProduct(Type type, const HopperProductShape& shape,
                        const HopperProductPointers& pointers);
// False, having done nothing, where the driver does not take the addresses or sizes.
bool HopperProduct(Type type, const HopperProductShape& shape,
                   const HopperProductPointers& pointers, Stream stream);

}  // namespace espalier::cuda
