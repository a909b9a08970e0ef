#include "worker/model/copy_tensor.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

absl::StatusOr<torch::ScalarType> ScalarType(const TensorSpec& spec) {
  if (spec.type == TensorType::kF32) return torch::kFloat;
  if (spec.type == TensorType::kBF16) return torch::kBFloat16;
  if (spec.type == TensorType::kF16) return torch::kHalf;
  if (spec.type == TensorType::kF64) return torch::kDouble;
  return absl::UnimplementedError(absl::StrCat("tensor ", spec.name, " is of type ",
                                               TensorTypeName(spec.type),
                                               "; supported: F32, BF16, F16, F64"));
}

absl::Status CopyTensor(const Safetensors& file, const TensorView& from, const Parameter& to) {
  if (from.spec.shape != to.shape.shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", from.spec.name, " has shape [", absl::StrJoin(from.spec.shape, ", "),
        "]; config.json asks for [", absl::StrJoin(to.shape.shape, ", "), "]"));
  }
  ASSIGN_OR_RETURN(const torch::ScalarType type, ScalarType(from.spec));
  const int64_t width = TensorTypeBytes(from.spec.type);
  torch::Tensor values = to.value.detach().view({-1});
  // As the type wants it here, and as the blits of MPS want it.
  const auto alignment =
      static_cast<uintptr_t>(values.is_cpu() ? width : std::max<int64_t>(width, 4));
  int64_t at = 0;
  return file.Stream(from, [&](absl::Span<const std::byte> piece) {
    const int64_t n = static_cast<int64_t>(piece.size()) / width;
    return CatchTorch(absl::StrCat("loading ", from.spec.name), [&] {
      torch::Tensor source;
      if (reinterpret_cast<uintptr_t>(piece.data()) % alignment == 0) {
        source = torch::from_blob(const_cast<std::byte*>(piece.data()), {n}, type);
      } else {
        source = torch::empty({n}, type);
        std::memcpy(source.data_ptr(), piece.data(), piece.size());
      }
      values.narrow(0, at, n).copy_(source);
      at += n;
    });
  });
}

}  // namespace espalier
