#include "worker/sync/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

namespace {
// Elements below which a sum takes the time of its messages' way, not of its bytes.
constexpr int64_t kLeastBucket = 1 << 15;
}  // namespace

std::vector<int64_t> BucketEnds(absl::Span<const Parameter> parameters, int64_t target_elements) {
  std::vector<int64_t> ends;
  int64_t last = 0;
  for (const Parameter& parameter : parameters) {
    if (parameter.shape.layer >= 0) last = parameter.offset + parameter.size;
  }
  int64_t begin = 0;
  for (const Parameter& parameter : parameters) {
    const int64_t end = parameter.offset + parameter.size;
    const int64_t target = std::min(target_elements, std::max((last - end) / 4, kLeastBucket));
    if (end > last || (end < last && end - begin < target)) continue;
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
      transfers_(gradient_.device()),
      ends_(std::move(bucket_ends)) {
  ESPALIER_CHECK(!ends_.empty() && ends_.back() <= gradient_.numel(),
                 "buckets must lie within the gradient");
}

bool GradientExchange::Alone() const {
  const bool lacking = wire_.residual != nullptr && wire_.residual->kept();
  return collective_.world_size() == 1 && !lacking;
}

torch::Tensor GradientExchange::Bucket(const torch::Tensor& of, size_t bucket) const {
  const int64_t begin = bucket == 0 ? 0 : ends_[bucket - 1];
  return of.narrow(0, begin, ends_[bucket] - begin);
}

void GradientExchange::Final(int64_t end) {
  if (Alone()) return;
  if (!host_.defined()) {
    host_ = gradient_.is_cpu() ? gradient_ : transfers_.HostFloats(gradient_.numel());
  }
  if (copies_.empty() && wire_.residual != nullptr) {
    wire_.residual->Scatter(collective_.rank(), collective_.world_size());
  }
  while (copies_.size() < ends_.size() && ends_[copies_.size()] <= end) {
    const size_t bucket = copies_.size();
    copies_.push_back(gradient_.is_cpu()
                          ? Transfers::Copy()
                          : transfers_.ToHost(Bucket(gradient_, bucket), Bucket(host_, bucket)));
  }
  StartCopied(/*wait=*/false);
}

void GradientExchange::StartCopied(bool wait) {
  while (tickets_.size() < copies_.size()) {
    const size_t bucket = tickets_.size();
    if (wait) copies_[bucket].Wait();
    if (!copies_[bucket].Done()) return;
    const torch::Tensor values = Bucket(host_, bucket);
    const int64_t begin = values.storage_offset() - host_.storage_offset(), size = values.numel();
    tickets_.push_back(collective_.StartAllReduce(
        {absl::MakeSpan(values.data_ptr<float>(), static_cast<size_t>(size)), wire_.type,
         wire_.residual == nullptr ? absl::Span<float>() : wire_.residual->Of(begin, size)}));
  }
}

absl::Status GradientExchange::Begin() {
  return CatchTorch("starting the exchange of gradients", [&] {
    Final(ends_.back());
    StartCopied(/*wait=*/true);
  });
}

absl::Status GradientExchange::Finish() {
  absl::Status status;
  for (size_t bucket = 0; status.ok() && bucket < tickets_.size(); ++bucket) {
    status = collective_.Wait(tickets_[bucket]);
    if (!status.ok() || gradient_.is_cpu()) continue;
    status = CatchTorch("copying the gradient to the device", [&] {
      transfers_.ToDevice(Bucket(host_, bucket), Bucket(gradient_, bucket));
    });
  }
  copies_.clear();
  tickets_.clear();
  if (status.ok()) status = CatchTorch("joining transfers", [&] { transfers_.Join(); });
  return status;
}

}  // namespace espalier
