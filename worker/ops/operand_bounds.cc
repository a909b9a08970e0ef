#include "worker/ops/operand_bounds.h"

#include <algorithm>

namespace espalier {

using torch::Tensor;

int64_t RowsWithin(int64_t row_bytes, int64_t most_rows, int64_t most_bytes) {
  const int64_t fitting = most_bytes / std::max<int64_t>(1, row_bytes);
  return std::max<int64_t>(1, std::min(fitting, most_rows));
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

}  // namespace espalier
