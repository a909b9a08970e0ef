#include "worker/optimizer/precision.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<torch::ScalarType> ComputeType(v1::Precision precision, torch::Device device) {
  switch (precision) {
    case v1::PRECISION_BF16:
      return torch::kBFloat16;
    case v1::PRECISION_FP16:
      if (!device.is_cpu()) return torch::kHalf;
      return absl::FailedPreconditionError(
          absl::StrCat("train.precision is fp16, which device ", device.str(),
                       " does not compute in; choose bf16 or fp32, or another device"));
    default:
      return torch::kFloat;
  }
}

LossScale LossScale::For(v1::Precision precision) {
  if (precision != v1::PRECISION_FP16) return {};
  return {.dynamic = 1, .exponent = kFirstExponent, .finite_in_a_row = 0};
}

bool LossScale::Adjust(bool finite) {
  if (!dynamic) return finite;
  if (!finite) {
    finite_in_a_row = 0;
    if (exponent == 0) return false;
    --exponent;
    return true;
  }
  if (++finite_in_a_row >= kGrowAfter) {
    finite_in_a_row = 0;
    exponent = std::min(exponent + 1, kLastExponent);
  }
  return true;
}

}  // namespace espalier
