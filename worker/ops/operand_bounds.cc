#include "worker/ops/operand_bounds.h"

#include <algorithm>

namespace espalier {
namespace {

using torch::Tensor;

// Of the widened copies that a product of 16-bit numbers is made from.
constexpr int64_t kMostCopyBytes = int64_t{1} << 28;

void AddOuterProduct(const Tensor& sum, const Tensor& dy, const Tensor& x) {
  // A dense left side: transposed views come out wrong on MPS before 2.14 (pytorch#193487).
  const Tensor left = torch::empty({dy.size(1), dy.size(0)}, sum.options());
  left.copy_(dy.t());
  const Tensor right = x.to(sum.scalar_type());
  sum.addmm_(left, right);
}

}  // namespace

int64_t RowsWithin(int64_t row_bytes, int64_t most_rows, int64_t most_bytes) {
  const int64_t fitting = most_bytes / std::max<int64_t>(1, row_bytes);
  return std::max<int64_t>(1, std::min(fitting, most_rows));
}

int64_t SharedSize(int64_t size, int64_t step, torch::Device device) {
  return device.is_cpu() || device.is_cuda() ? size : (size + step - 1) / step * step;
}

AttentionPart AttentionPartOf(const AttentionSize& size, int64_t most_rows, int64_t most_bytes) {
  const int64_t row_bytes = size.heads * size.keys * size.score_bytes;
  // Rows of the heads that share keys are the common dimension of the keys' gradients.
  const int64_t rows =
      RowsWithin(row_bytes, std::min(most_rows, kMostReduction / size.group), most_bytes);
  return {RowsWithin(row_bytes * rows, size.batch, most_bytes), rows};
}

Tensor BoundedProduct(const Tensor& a, const Tensor& b) {
  const int64_t inner = a.size(-1);
  if (inner <= kMostReduction) return a.matmul(b);
  const auto wide = torch::promote_types(a.scalar_type(), torch::kFloat);
  Tensor sum;
  for (int64_t begin = 0; begin < inner; begin += kMostReduction) {
    const int64_t length = std::min(kMostReduction, inner - begin);
    const Tensor left = a.narrow(-1, begin, length).contiguous();
    const Tensor part = left.matmul(b.narrow(-2, begin, length)).to(wide);
    sum = sum.defined() ? sum.add_(part) : part;
  }
  return sum.to(a.scalar_type());
}

void ProductInParts(const Tensor& a, const Tensor& b, bool add, Tensor to) {
  const int64_t inner = a.size(1);
  if (inner <= kMostReduction) {
    add ? to.addmm_(a, b) : torch::mm_out(to, a, b);
    return;
  }
  for (int64_t begin = 0; begin < inner; begin += kMostReduction) {
    const int64_t length = std::min(kMostReduction, inner - begin);
    const Tensor left = a.narrow(1, begin, length).contiguous(), right = b.narrow(0, begin, length);
    add || begin > 0 ? to.addmm_(left, right) : torch::mm_out(to, left, right);
  }
}

void AddOuterProducts(const Tensor& sum, const Tensor& dy, const Tensor& x) {
  const int64_t widest = std::max(dy.size(1), x.size(1));
  const int64_t step =
      RowsWithin(widest * static_cast<int64_t>(sum.element_size()), kMostReduction, kMostCopyBytes);
  if (dy.size(0) <= step) return AddOuterProduct(sum, dy, x);
  const Tensor own = torch::zeros_like(sum);
  for (int64_t begin = 0; begin < dy.size(0); begin += step) {
    const int64_t rows = std::min(step, dy.size(0) - begin);
    AddOuterProduct(own, dy.narrow(0, begin, rows), x.narrow(0, begin, rows));
  }
  sum.add_(own);
}

void AddWeightedRows(const Tensor& sum, const Tensor& weights, const Tensor& rows, double scale) {
  const bool parts = rows.size(0) > kMostReduction;
  const Tensor own = parts ? torch::zeros_like(sum) : sum;
  Tensor row = own.unsqueeze(0);
  for (int64_t begin = 0; begin < rows.size(0); begin += kMostReduction) {
    const int64_t length = std::min(kMostReduction, rows.size(0) - begin);
    row.addmm_(weights.narrow(0, begin, length).unsqueeze(0).to(sum.scalar_type()),
               rows.narrow(0, begin, length).to(sum.scalar_type()), /*beta=*/1, scale);
  }
  if (parts) sum.add_(own);
}

}  // namespace espalier
