#include "worker/ops/operands.h"

#include "common/base/check.h"

namespace espalier {
namespace {

using torch::Tensor;

// Whether each begins where the next of the list ends: `length` elements further.
template <typename Length>
bool FollowEachOther(const std::vector<Tensor>& list, Length&& length) {
  if (list.size() < 2) return false;
  for (const Tensor& tensor : list) {
    if (!tensor.defined() || tensor.numel() == 0) return false;
  }
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const Tensor &later = list[i], &earlier = list[i + 1];
    if (!later.is_alias_of(earlier) || later.scalar_type() != earlier.scalar_type() ||
        later.storage_offset() != earlier.storage_offset() + length(earlier)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Tensor JoinedRows(const std::vector<Tensor>& matrices) {
  const auto elements = [](const Tensor& matrix) { return matrix.numel(); };
  if (!FollowEachOther(matrices, elements)) return {};
  int64_t rows = 0;
  for (const Tensor& matrix : matrices) {
    if (!matrix.is_contiguous() || matrix.size(-1) != matrices[0].size(-1)) return {};
    rows += matrix.size(0);
  }
  const int64_t columns = matrices[0].size(-1);
  return matrices.back().as_strided({rows, columns}, {columns, 1});
}

Tensor JoinedColumns(const std::vector<Tensor>& parts) {
  const auto width = [](const Tensor& part) { return part.size(-1); };
  if (!FollowEachOther(parts, width)) return {};
  int64_t columns = 0;
  for (const Tensor& part : parts) columns += part.size(-1);
  const int64_t rows = parts[0].numel() / parts[0].size(-1);
  for (const Tensor& part : parts) {
    if (part.stride(-1) != 1 || part.numel() / part.size(-1) != rows) return {};
    int64_t stride = columns;  // of each dimension but the last, were the rows whole
    for (int64_t i = part.dim() - 2; i >= 0; stride *= part.size(i), --i) {
      if (part.stride(i) != stride) return {};
    }
  }
  return parts.back().as_strided({rows, columns}, {columns, 1});
}

ColumnOrder OrderOfColumns(const std::vector<Tensor>& parts) {
  if (JoinedColumns(parts).defined()) return ColumnOrder::kFirstLast;
  const bool in_order = JoinedColumns({parts.rbegin(), parts.rend()}).defined();
  return in_order ? ColumnOrder::kFirstFirst : ColumnOrder::kApart;
}

std::vector<Tensor> PartsOf(const Tensor& x, const std::vector<int64_t>& columns,
                            ColumnOrder order) {
  ESPALIER_CHECK(order != ColumnOrder::kApart, "parts that lie apart are of no rows");
  std::vector<Tensor> parts;
  int64_t begin = 0, end = x.size(-1);
  for (const int64_t n : columns) {
    end -= n;
    // Not views in the eyes of autograd, which would watch them for changes in place.
    const int64_t at = order == ColumnOrder::kFirstLast ? end : begin;
    parts.push_back(x.narrow(-1, at, n).variable_data());
    begin += n;
  }
  return parts;
}

}  // namespace espalier
