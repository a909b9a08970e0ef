// What wrappers of CUDA kernels share: types and rows of tensors as the kernels know them, and the
// stream that they go to. Used by cuda_ops_device.cc and cuda_one_row.cc. Any thread.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <cstdint>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

inline Type TypeOf(const torch::Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? Type::kBf16
         : x.scalar_type() == torch::kHalf   ? Type::kHalf
                                             : Type::kFloat;
}

// Elements from one row to the next, of rows [..., C] that may be parts of wider ones. (A dimension
// of size 1 may have any stride.)
inline int64_t RowStride(const torch::Tensor& x) {
  return x.is_contiguous() ? x.size(-1) : x.stride(-2);
}

inline RowShape RowsOf(const torch::Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

// Makes the tensors' device the current one, on whose stream kernels go, and asks in the end
// whether they could be launched.
class Launch {
 public:
  explicit Launch(const torch::Tensor& x) : guard_(x.device()) {}
  void Check() const { C10_CUDA_KERNEL_LAUNCH_CHECK(); }
  Stream stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

}  // namespace espalier::cuda
