// Products that LibTorch's operators do not offer: by cuBLASLt, and
// kernels/cuda/cuda_hopper_product.h.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <cmath>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/kernels/cuda/cuda_hopper_product.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/fused_tensor.h"

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
Layout LayoutOf(torch::ScalarType scalar, int64_t rows, int64_t columns) {
  const auto type = scalar == torch::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  cublasLtMatrixLayout_t layout = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, columns, rows, columns));
  return Layout(layout);
}

constexpr uint32_t kMostAlignment = 256;  // which new tensors have

// Of its first element: views of the flat buffers begin anywhere.
uint32_t AlignmentOf(const Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.data_ptr());
  uint32_t alignment = kMostAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// What cuBLASLt needs to know of a product before it can propose ways to make it.
struct Asked {
  int device;
  int type;
  int64_t rows, columns, inner;
  bool transposed, added;                       // as DenseProduct
  uint32_t x_at, weight_at, residual_at, y_at;  // AlignmentOf
  friend auto operator<=>(const Asked&, const Asked&) = default;
};
// Absent: none is better than its product without a choice, or there is none.
using Chosen = std::optional<cublasLtMatmulAlgo_t>;

// Of 128 rows or columns, which cuBLASLt has each processor of the device make at a time; 0: of
// another form.
float WidthOfTiles(const cublasLtMatmulAlgo_t& way) {
  uint32_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
  size_t written = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoConfigGetAttribute(
      &way, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile), &written);
  if (asked != CUBLAS_STATUS_SUCCESS) return 0;
  if (tile == CUBLASLT_MATMUL_TILE_128x160) return 160;
  return tile == CUBLASLT_MATMUL_TILE_128x128 ? 128 : 0;
}

bool SplitsSums(const cublasLtMatmulAlgo_t& way) {
  int32_t parts = 0;
  size_t written = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoConfigGetAttribute(
      &way, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts), &written);
  return asked != CUBLAS_STATUS_SUCCESS || parts > 1;
}

// Of a short inner size, where each processor makes many tiles, smaller ones than cuBLASLt prefers
// are faster, likely since one is multiplied while another is written: by 1.04 to 1.3 on the H200
// where it was measured, inner sizes of 512 to 3,072.
constexpr int64_t kMostInner = 3072;
constexpr float kLeastWaves = 8;   // tiles of a processor
constexpr int kMeasuredMajor = 9;  // Hopper
bool MayHaveSmallTiles(int64_t device, int64_t inner) {
  return inner <= kMostInner && at::cuda::getDeviceProperties(device)->major == kMeasuredMajor;
}
Chosen WayOfSmallTiles(absl::Span<const cublasLtMatmulHeuristicResult_t> proposed) {
  Chosen best;
  float least = 0;
  for (const cublasLtMatmulHeuristicResult_t& one : proposed) {
    const float width = WidthOfTiles(one.algo);
    if (width == 0 || one.wavesCount < kLeastWaves || SplitsSums(one.algo)) continue;
    const float time = std::ceil(one.wavesCount) * width;
    if (best && time >= least) continue;
    best = one.algo;
    least = time;
  }
  return best;
}

// The same for all products of a kind: to ask takes longer than to launch one.
class Choices {
 public:
  template <typename Propose>
  Chosen Of(const Asked& asked, const Propose& propose) {
    const absl::MutexLock lock(&mutex_);
    if (made_.size() >= kMost) made_.clear();
    const auto there = made_.find(asked);
    if (there != made_.end()) return there->second;
    return made_.emplace(asked, Choose(asked, propose)).first->second;
  }

 private:
  static constexpr size_t kMost = 4096;
  static constexpr int kMostWays = 8;
  template <typename Propose>
  static Chosen Choose(const Asked& asked, const Propose& propose) {
    cublasLtMatmulHeuristicResult_t proposed[kMostWays] = {};
    const bool is_short = MayHaveSmallTiles(asked.device, asked.inner);
    const int found = propose(is_short ? kMostWays : 1, proposed);
    if (found == 0) return std::nullopt;
    Chosen best;
    if (is_short) best = WayOfSmallTiles({proposed, static_cast<size_t>(found)});
    return best || !asked.added ? best : Chosen(proposed[0].algo);
  }
  absl::Mutex mutex_;
  std::map<Asked, Chosen> made_ ABSL_GUARDED_BY(mutex_);
};
Choices& ChoicesOfProcess() {
  static auto* const choices = new Choices;
  return *choices;
}

// A product as cuBLASLt describes it.
struct Description {
  Operation operation;
  Layout weight, x, y;  // what is added lies as y

  int Propose(const Asked& asked, int most, cublasLtMatmulHeuristicResult_t* proposed) const {
    cublasLtMatmulPreference_t wanted = nullptr;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&wanted));
    const Preference preference(wanted);
    const auto prefer = [wanted](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      TORCH_CUDABLAS_CHECK(
          cublasLtMatmulPreferenceSetAttribute(wanted, what, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, asked.weight_at);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, asked.x_at);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, asked.residual_at);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, asked.y_at);
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        at::cuda::getCurrentCUDABlasLtHandle(), operation.get(), weight.get(), x.get(), y.get(),
        y.get(), wanted, most, proposed, &found);
    return status == CUBLAS_STATUS_SUCCESS ? found : 0;
  }
};

Operation OperationOf(bool transposed) {
  cublasLtMatmulDesc_t created = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Operation operation(created);
  const cublasOperation_t turned = transposed ? CUBLAS_OP_N : CUBLAS_OP_T;  // its rows: columns
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(created, CUBLASLT_MATMUL_DESC_TRANSA, &turned,
                                                      sizeof(turned)));
  return operation;
}

}  // namespace

Tensor DenseProduct(const Tensor& x, const Tensor& weight, bool transposed, const Tensor& residual,
                    const Tensor& to) {
  const torch::ScalarType type = x.scalar_type();
  const bool adds = residual.defined();
  if (type == torch::kFloat || weight.scalar_type() != type) return {};
  if (adds && residual.scalar_type() != type) return {};
  if (to.defined() && (to.scalar_type() != type || !to.is_contiguous())) return {};
  if (!x.is_contiguous() || !weight.is_contiguous() || x.numel() == 0) return {};
  if (adds ? !residual.is_contiguous() : !MayHaveSmallTiles(x.get_device(), x.size(1))) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), inner = x.size(1), columns = weight.size(transposed ? 1 : 0);
  const uint32_t y_at = to.defined() ? AlignmentOf(to) : kMostAlignment;
  const Asked asked = {.device = static_cast<int>(x.get_device()),
                       .type = static_cast<int>(type),
                       .rows = rows,
                       .columns = columns,
                       .inner = inner,
                       .transposed = transposed,
                       .added = adds,
                       .x_at = AlignmentOf(x),
                       .weight_at = AlignmentOf(weight),
                       .residual_at = adds ? AlignmentOf(residual) : y_at,
                       .y_at = y_at};
  const Description of = {.operation = OperationOf(transposed),
                          .weight = LayoutOf(type, weight.size(0), weight.size(1)),
                          .x = LayoutOf(type, rows, inner),
                          .y = LayoutOf(type, rows, columns)};
  const Chosen way = ChoicesOfProcess().Of(
      asked, [&](int most, auto* proposed) { return of.Propose(asked, most, proposed); });
  if (!way) return {};
  const Tensor y = to.defined() ? to : torch::empty({rows, columns}, x.options());
  const Tensor workspace = torch::empty({kWorkspaceBytes}, x.options().dtype(torch::kUInt8));
  const float one = 1, beta = adds ? 1 : 0;
  TORCH_CUDABLAS_CHECK(cublasLtMatmul(
      at::cuda::getCurrentCUDABlasLtHandle(), of.operation.get(), &one, weight.data_ptr(),
      of.weight.get(), x.data_ptr(), of.x.get(), &beta, adds ? residual.data_ptr() : y.data_ptr(),
      of.y.get(), y.data_ptr(), of.y.get(), &*way, workspace.data_ptr(), kWorkspaceBytes,
      at::cuda::getCurrentCUDAStream()));
  return y;
}

Gated GatedProduct(const Tensor& x, const Tensor& weight, bool keep) {
  const auto type = x.scalar_type();
  const bool narrow = type == torch::kBFloat16 || type == torch::kHalf;
  if (!x.is_cuda() || !narrow || weight.scalar_type() != type || !x.is_contiguous()) return {};
  if (!weight.is_contiguous()) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t inner = weight.size(1), columns = weight.size(0) / 2;
  Gated made;
  made.y = fused_ops::ResizedLast(x, columns);
  if (keep) made.products = fused_ops::ResizedLast(x, 2 * columns);
  const HopperProductShape shape = {.rows = x.numel() / inner, .inner = inner, .columns = columns};
  const HopperProductPointers pointers = {.x = x.data_ptr(),
                                          .gate = weight.data_ptr(),
                                          .up = weight.narrow(0, columns, columns).data_ptr(),
                                          .y = made.y.data_ptr(),
                                          .products = keep ? made.products.data_ptr() : nullptr};
  const Type of = type == torch::kHalf ? Type::kHalf : Type::kBf16;
  if (!TakesHopperProduct(of, shape, pointers)) return {};
  if (!HopperProduct(of, shape, pointers, c10::cuda::getCurrentCUDAStream().stream())) return {};
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return made;
}

}  // namespace espalier::cuda
