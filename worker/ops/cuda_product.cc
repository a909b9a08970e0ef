// Products that LibTorch's operators do not offer: by cuBLASLt, and
// kernels/cuda/cuda_hopper_product.h.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "worker/kernels/cuda/cuda_hopper_product.h"
#include "worker/ops/cuda_ops.h"

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

// Of its first element: views of the flat buffers begin anywhere.
uint32_t AlignmentOf(const Tensor& x) {
  constexpr uint32_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(x.data_ptr());
  uint32_t alignment = kMost;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace

bool ResidualProduct(const Tensor& x, const Tensor& weight, bool transposed, const Tensor& residual,
                     const Tensor& y) {
  const c10::cuda::CUDAGuard guard(x.device());
  cublasLtMatmulDesc_t created = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const Operation operation(created);
  const cublasOperation_t turned = transposed ? CUBLAS_OP_N : CUBLAS_OP_T;  // its rows: columns
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(created, CUBLASLT_MATMUL_DESC_TRANSA, &turned,
                                                      sizeof(turned)));
  cublasLtMatmulPreference_t wanted = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&wanted));
  const Preference preference(wanted);
  const auto prefer = [wanted](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(wanted, what, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(weight));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(x));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(residual));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(y));

  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const Layout a = LayoutOf(weight), b = LayoutOf(x), c = LayoutOf(residual), d = LayoutOf(y);
  cublasLtMatmulHeuristicResult_t choice = {};
  int found = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(
      handle, created, a.get(), b.get(), c.get(), d.get(), wanted, 1, &choice, &found);
  if (asked != CUBLAS_STATUS_SUCCESS || found == 0) return false;
  const Tensor workspace = torch::empty({kWorkspaceBytes}, x.options().dtype(torch::kUInt8));
  const float one = 1;
  TORCH_CUDABLAS_CHECK(cublasLtMatmul(handle, created, &one, weight.data_ptr(), a.get(),
                                      x.data_ptr(), b.get(), &one, residual.data_ptr(), c.get(),
                                      y.data_ptr(), d.get(), &choice.algo, workspace.data_ptr(),
                                      kWorkspaceBytes, at::cuda::getCurrentCUDAStream()));
  return true;
}

namespace {

enum class Kind { kPlain, kGated, kGatedKept };

// A new tensor of the rows of x, of so many columns.
Tensor WithColumns(const Tensor& x, int64_t columns) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  return torch::empty(sizes, x.options());
}

// Of x with one weight, or with the two halves of its rows, gated.
Gated HopperProductOf(const Tensor& x, const Tensor& weight, Kind kind) {
  const auto type = x.scalar_type();
  const bool narrow = type == torch::kBFloat16 || type == torch::kHalf;
  if (!x.is_cuda() || !narrow || weight.scalar_type() != type || !x.is_contiguous()) return {};
  if (!weight.is_contiguous()) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const bool gated = kind != Kind::kPlain;
  const int64_t inner = weight.size(1), columns = weight.size(0) / (gated ? 2 : 1);
  Gated made;
  made.y = WithColumns(x, columns);
  if (kind == Kind::kGatedKept) made.products = WithColumns(x, 2 * columns);
  const HopperProductShape shape = {.rows = x.numel() / inner, .inner = inner, .columns = columns};
  const HopperProductPointers pointers = {
      .x = x.data_ptr(),
      .weight = weight.data_ptr(),
      .up = gated ? weight.narrow(0, columns, columns).data_ptr() : nullptr,
      .y = made.y.data_ptr(),
      .products = made.products.defined() ? made.products.data_ptr() : nullptr};
  const Type of = type == torch::kHalf ? Type::kHalf : Type::kBf16;
  if (!TakesHopperProduct(of, shape, pointers)) return {};
  if (!HopperProduct(of, shape, pointers, c10::cuda::getCurrentCUDAStream().stream())) return {};
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return made;
}

}  // namespace

Gated GatedProduct(const Tensor& x, const Tensor& weight, bool keep) {
  return HopperProductOf(x, weight, keep ? Kind::kGatedKept : Kind::kGated);
}

Tensor ShortProduct(const Tensor& x, const Tensor& weight) {
  // Where it was measured to be faster: 1.1 x for 512 and 1,536 or 3,072.
  constexpr int64_t kMostInner = 1024, kLeastColumns = 1024;
  if (weight.size(1) > kMostInner || weight.size(0) < kLeastColumns) return {};
  return HopperProductOf(x, weight, Kind::kPlain).y;
}

}  // namespace espalier::cuda
