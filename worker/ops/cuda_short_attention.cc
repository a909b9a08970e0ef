// Attention of short sequences as an autograd function around kernels/cuda/cuda_short_attention.h.
#include "worker/kernels/cuda/cuda_short_attention.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/ops/cuda_ops.h"
#include "worker/ops/operands.h"

namespace espalier::cuda {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMostBlocks = 65535;  // in the second dimension of a launch

Type TypeOf(const Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? Type::kBf16 : Type::kHalf;
}

// [B, T, heads, D] as [B, T, heads * D].
variable_list Flat(const variable_list& heads) {
  variable_list flat;
  for (const Tensor& x : heads) flat.push_back(x.flatten(2));
  return flat;
}

// Elements from one position to the next.
int64_t RowOf(const Tensor& x) { return x.size(1) == 1 ? x.stride(0) : x.stride(1); }

// Whether rows lie one after the other, and threads can move 16 bytes of them.
bool IsEven(const Tensor& x) {
  const int64_t wide = 16 / x.element_size(), row = RowOf(x);
  return x.stride(3) == 1 && x.stride(2) == x.size(3) && row % wide == 0 &&
         (x.size(0) == 1 || x.stride(0) == x.size(1) * row) &&
         reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
}

bool Takes(const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool narrow = q.scalar_type() == torch::kBFloat16 || q.scalar_type() == torch::kHalf;
  if (!q.is_cuda() || !narrow || q.dim() != 4 || q.size(3) != kShortHeadDim) return false;
  if (q.numel() == 0 || q.size(0) > kMostBlocks) return false;
  for (const Tensor& one : {q, k, v}) {
    if (one.sizes() != q.sizes() || one.scalar_type() != q.scalar_type()) return false;
    if (!IsEven(one) || RowOf(one) != RowOf(q)) return false;
  }
  const c10::cuda::CUDAGuard guard(q.device());
  return TakesShortAttention(TypeOf(q), q.size(1));
}

struct ShortAttentionFunction : torch::autograd::Function<ShortAttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& cosine, const Tensor& sine, bool causal,
                        bool differentiated) {
    const Tensor out = torch::empty(q.sizes(), q.options());
    const Tensor sums = differentiated ? torch::empty({q.size(0), q.size(2), q.size(1)},
                                                      q.options().dtype(torch::kFloat))
                                       : Tensor();
    const c10::cuda::CUDAGuard guard(q.device());
    ShortAttention(TypeOf(q), ShapeOf(q, 0, causal), PointersOf({q, k, v, cosine, sine, out, sums}),
                   c10::cuda::getCurrentCUDAStream().stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (differentiated) ctx->save_for_backward({q, k, v, cosine, sine, out, sums});
    ctx->saved_data["causal"] = causal;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], dout = upstream[0].contiguous();
    // What came side by side goes so, in the same order.
    const ColumnOrder order = OrderOfColumns(Flat({saved[0], saved[1], saved[2]}));
    const int64_t columns = q.size(2) * q.size(3);
    variable_list dx = PartsOf(torch::empty({q.size(0), q.size(1), 3 * columns}, q.options()),
                               {columns, columns, columns},
                               order == ColumnOrder::kApart ? ColumnOrder::kFirstFirst : order);
    for (Tensor& one : dx) one = one.view(q.sizes());
    const c10::cuda::CUDAGuard guard(q.device());
    ShortAttentionBackward(TypeOf(q), ShapeOf(q, 3 * columns, ctx->saved_data["causal"].toBool()),
                           PointersOf(saved),
                           {.out = dout.data_ptr(),
                            .q = dx[0].data_ptr(),
                            .k = dx[1].data_ptr(),
                            .v = dx[2].data_ptr()},
                           c10::cuda::getCurrentCUDAStream().stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {dx[0], dx[1], dx[2], Tensor(), Tensor(), Tensor(), Tensor()};
  }

 private:
  static ShortAttentionShape ShapeOf(const Tensor& q, int64_t grad_row, bool causal) {
    return {.batch = q.size(0),
            .time = q.size(1),
            .heads = q.size(2),
            .row = RowOf(q),
            .grad_row = grad_row,
            .causal = causal};
  }
  // Of q, k, v, cosine, sine, out and sums.
  static ShortAttentionPointers PointersOf(const variable_list& x) {
    const auto floats = [](const Tensor& one) {
      return one.defined() && one.numel() > 0 ? one.data_ptr<float>() : nullptr;
    };
    return {.q = x[0].data_ptr(),
            .k = x[1].data_ptr(),
            .v = x[2].data_ptr(),
            .cosine = floats(x[3]),
            .sine = floats(x[4]),
            .out = x[5].data_ptr(),
            .sums = floats(x[6])};
  }
};

}  // namespace

Tensor ShortAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cosine,
                      const Tensor& sine, bool causal) {
  const bool turned = cosine.defined();
  if (!Takes(q, k, v) || (turned && cosine.size(0) != q.size(1))) return {};
  const Tensor none = torch::empty({0}, q.options().dtype(torch::kFloat));
  const bool differentiated = torch::GradMode::is_enabled() &&
                              (q.requires_grad() || k.requires_grad() || v.requires_grad());
  return ShortAttentionFunction::apply(q, k, v, turned ? cosine.contiguous() : none,
                                       turned ? sine.contiguous() : none, causal, differentiated);
}

}  // namespace espalier::cuda
