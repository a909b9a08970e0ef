#include "tests/worker/mac/mac_shapes.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier::mac_shapes {

using c10::IValue;
using torch::Tensor;

std::string Signature(const std::string& name, const std::vector<IValue>& arguments) {
  std::string text = name;
  const auto add = [&text](const Tensor& tensor) {
    if (!tensor.defined()) return;
    absl::StrAppend(&text, " ", torch::toString(tensor.scalar_type()), "[",
                    absl::StrJoin(tensor.sizes(), "x"), "]");
  };
  for (const IValue& argument : arguments) {
    if (argument.isTensor()) add(argument.toTensor());
    if (!argument.isTensorList()) continue;
    for (const Tensor& tensor : argument.toTensorVector()) add(tensor);
  }
  return text;
}

std::optional<std::vector<int64_t>> Result(const std::string& name,
                                           const std::vector<IValue>& arguments) {
  static const std::set<std::string> kAlike = {"abs", "logical_not", "masked_fill"};
  if (kAlike.count(name) > 0) return arguments[0].toTensor().sizes().vec();
  if (name != "index_select") return std::nullopt;
  std::vector<int64_t> sizes = arguments[0].toTensor().sizes().vec();
  sizes[static_cast<size_t>(arguments[1].toInt())] = arguments[2].toTensor().numel();
  return sizes;
}

std::vector<Tensor> Norm(const std::string& name, const std::vector<IValue>& arguments) {
  const bool backward = name == "native_layer_norm_backward";
  if (!backward && name != "native_layer_norm") return {};
  const Tensor x = arguments[backward ? 1 : 0].toTensor();
  const auto made = [&](const std::vector<int64_t>& shape) {
    return torch::empty(shape, torch::TensorOptions().dtype(x.dtype()).device(torch::kMeta));
  };
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  const std::vector<int64_t> row = {columns}, statistics = {rows, 1};
  return {made(x.sizes().vec()), made(backward ? row : statistics),
          made(backward ? row : statistics)};
}

}  // namespace espalier::mac_shapes
