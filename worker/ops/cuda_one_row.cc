// The kernels of generation on CUDA tensors: the product of one row, and attention over what is
// kept.
#include <cmath>

#include "worker/ops/cuda_ops.h"
#include "worker/ops/cuda_ops_device.h"

namespace espalier::cuda {
namespace {

using torch::Tensor;

constexpr int64_t kMostHeadDim = 256, kHeadStep = 16;
constexpr double kLog2OfE = 1.4426950408889634;

// Eight numbers side by side in memory are read at once.
bool IsAligned(const Tensor& x) {
  const auto bytes = static_cast<uintptr_t>(8 * x.element_size());
  return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.data_ptr()) % bytes == 0;
}

const void* OrNull(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

OneRow ShapeOf(const OneRowInput& input, const Tensor& weight) {
  OneRow shape;
  if (input.norm.defined()) shape.input = OneRow::Input::kNormal;
  if (input.up.defined()) shape.input = OneRow::Input::kSwiGlu;
  shape.columns = weight.size(0);
  shape.inner = weight.size(1);
  shape.x = input.x.data_ptr();
  shape.up = OrNull(input.up);
  shape.norm = static_cast<const float*>(OrNull(input.norm));
  shape.eps = static_cast<float>(input.eps);
  return shape;
}

}  // namespace

Tensor OneRowProduct(const OneRowInput& input, const Tensor& weight, const Tensor& residual) {
  const Tensor& x = input.x;
  if (x.numel() != x.size(-1) || !Apply(x) || weight.scalar_type() != x.scalar_type()) return {};
  if (residual.defined() && residual.scalar_type() != x.scalar_type()) return {};
  for (const Tensor& one : {x, weight, input.up, input.norm}) {
    if (one.defined() && !IsAligned(one)) return {};
  }
  const OneRow shape = ShapeOf(input, weight);
  if (!TakesOneRow(TypeOf(x), shape)) return {};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = shape.columns;
  const Tensor y = torch::empty(sizes, x.options());
  const Tensor added = residual.defined() ? residual.contiguous() : residual;
  const Launch launch(x);
  OneRowProduct(TypeOf(x), shape, weight.data_ptr(), OrNull(added), y.data_ptr(), launch.stream());
  launch.Check();
  return y;
}

bool TakesKept(const Tensor& keys, int64_t heads) {
  const int64_t dim = keys.size(3);
  return Apply(keys) && keys.is_contiguous() && dim % kHeadStep == 0 && dim <= kMostHeadDim &&
         heads % keys.size(1) == 0;
}

KeptWork MakeKeptWork(const Tensor& keys, int64_t heads) {
  int64_t numbers = 0;
  for (int64_t rows = 1; rows <= keys.size(0); ++rows) {
    const int64_t splits = KeptAttentionSplits(rows, keys.size(1));
    numbers = std::max(numbers, rows * heads * splits * (keys.size(3) + 2));
  }
  return {torch::empty({numbers}, keys.options().dtype(torch::kFloat)),
          torch::zeros({keys.size(0) * heads}, keys.options().dtype(torch::kInt))};
}

Tensor KeptAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cosine,
                     const Tensor& sine, const KeptRows& kept, const KeptWork& work) {
  const int64_t dim = q.size(2);
  const auto dense = [dim](const Tensor& x) {  // heads side by side; rows may be wider
    return x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == dim);
  };
  const auto stride = [](const Tensor& x) { return x.flatten(1).stride(0); };
  const bool same = dense(q) && dense(k) && dense(v) &&
                    (q.size(0) == 1 || (stride(q) == stride(k) && stride(q) == stride(v)));
  if (!same) {  // as parts of one row
    const Tensor all = torch::cat({q, k, v}, 1);
    return KeptAttention(all.narrow(1, 0, q.size(1)), all.narrow(1, q.size(1), k.size(1)),
                         all.narrow(1, q.size(1) + k.size(1), v.size(1)), cosine, sine, kept, work);
  }
  const Tensor out = torch::empty(q.sizes(), q.options());
  const KeptAttentionShape shape{
      .rows = static_cast<int>(q.size(0)),
      .heads = static_cast<int>(q.size(1)),
      .kv_heads = static_cast<int>(k.size(1)),
      .head_dim = static_cast<int>(dim),
      .stride = stride(q),
      .capacity = kept.keys.size(2),
      .window = kept.window,
      .splits = KeptAttentionSplits(q.size(0), k.size(1)),
      .scale = static_cast<float>(kLog2OfE / std::sqrt(static_cast<double>(dim)))};
  const bool turned = cosine.defined();
  const KeptAttentionPointers pointers{.q = q.data_ptr(),
                                       .k = k.data_ptr(),
                                       .v = v.data_ptr(),
                                       .cosine = turned ? cosine.const_data_ptr<float>() : nullptr,
                                       .sine = turned ? sine.const_data_ptr<float>() : nullptr,
                                       .keys = kept.keys.data_ptr(),
                                       .values = kept.values.data_ptr(),
                                       .positions = kept.positions.const_data_ptr<int64_t>(),
                                       .out = out.data_ptr(),
                                       .parts = work.parts.data_ptr<float>(),
                                       .finished = work.finished.data_ptr<int>()};
  const Launch launch(q);
  KeptAttention(TypeOf(q), shape, pointers, launch.stream());
  launch.Check();
  return out;
}

}  // namespace espalier::cuda
