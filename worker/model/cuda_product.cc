// Products by cuBLASLt that LibTorch's operators do not offer.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublasLt.h>

#include <memory>
#include <type_traits>

#include "worker/model/cuda_ops.h"

namespace espalier::cuda {
namespace {

using torch::Tensor;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA advises for Hopper

// Owns a descriptor of cuBLASLt, which are pointers to opaque structures.
template <typename Descriptor, cublasStatus_t (*kDestroy)(Descriptor)>
struct Destroyer {
  using pointer = Descriptor;
  void operator()(Descriptor descriptor) const { kDestroy(descriptor); }
};
template <typename Descriptor, cublasStatus_t (*kDestroy)(Descriptor)>
using Owned = std::unique_ptr<std::remove_pointer_t<Descriptor>, Destroyer<Descriptor, kDestroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A dense row-major matrix, which cuBLAS takes for its transpose.
Layout LayoutOf(const Tensor& x) {
  const auto type = x.scalar_type() == torch::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  cublasLtMatrixLayout_t layout = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, x.size(1), x.size(0), x.size(1)));
  return Layout(layout);
}

}  // namespace

void ResidualProduct(const Tensor& x, const Tensor& weight, const Tensor& residual,
                     const Tensor& y) {
  const c10::cuda::CUDAGuard guard(x.device());
  cublasLtMatmulDesc_t created = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const Operation operation(created);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(created, CUBLASLT_MATMUL_DESC_TRANSA,
                                                      &transposed, sizeof(transposed)));
  cublasLtMatmulPreference_t wanted = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&wanted));
  const Preference preference(wanted);
  const size_t bytes = kWorkspaceBytes;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
      wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));

  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Layout a = LayoutOf(weight), b = LayoutOf(x), c = LayoutOf(residual), d = LayoutOf(y);
  cublasLtMatmulHeuristicResult_t choice = {};
  int found = 0;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, created, a.get(), b.get(), c.get(),
                                                      d.get(), wanted, 1, &choice, &found));
  TORCH_CHECK(found > 0, "cuBLASLt has no product for these shapes");
  const Tensor workspace = torch::empty({kWorkspaceBytes}, x.options().dtype(torch::kUInt8));
  const float one = 1;
  TORCH_CUDABLAS_CHECK(cublasLtMatmul(handle, created, &one, weight.data_ptr(), a.get(),
                                      x.data_ptr(), b.get(), &one, residual.data_ptr(), c.get(),
                                      y.data_ptr(), d.get(), &choice.algo, workspace.data_ptr(),
                                      kWorkspaceBytes, at::cuda::getCurrentCUDAStream()));
}

}  // namespace espalier::cuda
