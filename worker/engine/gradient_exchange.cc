#include "worker/engine/gradient_exchange.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/model/torch_compat.h"

namespace espalier {

std::vector<int64_t> BucketEnds(absl::Span<const Parameter> parameters, int64_t target_elements) {
  std::vector<int64_t> ends;
  int64_t begin = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t end = parameters[i].offset + parameters[i].size;
    const bool last = i + 1 == parameters.size();
    const bool layer_ends = last || parameters[i + 1].shape.layer != parameters[i].shape.layer;
    if (!last && !(layer_ends && end - begin >= target_elements)) continue;
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

WireType WireOf(v1::GradientDtype dtype) {
  switch (dtype) {
    case v1::GRADIENT_DTYPE_BF16:
      return WireType::kBf16;
    case v1::GRADIENT_DTYPE_INT8:
      return WireType::kInt8;
    default:
      return WireType::kFp32;
  }
}

GradientExchange::GradientExchange(Collective& collective, torch::Tensor gradient,
                                   std::vector<int64_t> bucket_ends, Wire wire)
    : collective_(collective),
      wire_(wire),
      gradient_(std::move(gradient)),
      ends_(std::move(bucket_ends)) {
  ESPALIER_CHECK(!ends_.empty() && ends_.back() == gradient_.numel(),
                 "buckets must cover the gradient");
  host_ = gradient_.is_cpu() ? gradient_ : torch::empty({gradient_.numel()}, torch::kFloat);
}

void GradientExchange::Final(int64_t end) {
  if (started_ == 0 && wire_.residual != nullptr) {
    wire_.residual->Scatter(collective_.rank(), collective_.world_size());
  }
  for (; started_ < ends_.size() && ends_[started_] <= end; ++started_) {
    const int64_t begin = started_ == 0 ? 0 : ends_[started_ - 1];
    const int64_t size = ends_[started_] - begin;
    if (!gradient_.is_cpu()) host_.narrow(0, begin, size).copy_(gradient_.narrow(0, begin, size));
    last_ = collective_.StartAllReduce(
        {absl::MakeSpan(host_.data_ptr<float>() + begin, static_cast<size_t>(size)), wire_.type,
         wire_.residual == nullptr ? absl::Span<float>() : wire_.residual->Of(begin, size)});
  }
}

absl::Status GradientExchange::Finish() {
  RETURN_IF_ERROR(CatchTorch("starting the exchange of gradients", [&] { Final(ends_.back()); }));
  started_ = 0;
  RETURN_IF_ERROR(collective_.Wait(last_));
  if (gradient_.is_cpu()) return absl::OkStatus();
  return CatchTorch("copying the gradient to the device", [&] { gradient_.copy_(host_); });
}

}  // namespace espalier
