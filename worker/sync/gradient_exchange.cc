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

absl::Span<float> SpanOf(const torch::Tensor& values) {
  return {values.data_ptr<float>(), static_cast<size_t>(values.numel())};
}
}  // namespace

std::vector<int64_t> BucketEnds(const Parameters& parameters, int64_t elements,
                                int64_t target_elements) {
  std::vector<int64_t> ends;
  const int64_t last = elements;
  const absl::Span<const int64_t> arenas = parameters.flat().ends();
  int64_t begin = 0;
  for (const Parameter& parameter : parameters.trained()) {
    const int64_t end = parameter.offset + parameter.size;
    const int64_t target = std::min(target_elements, std::max((last - end) / 4, kLeastBucket));
    const bool closed = end == last || end - begin >= target ||
                        std::binary_search(arenas.begin(), arenas.end(), end);
    if (end > last || !closed) continue;
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

GradientExchange::Memory GradientExchange::MemoryOf(Parameters& parameters, FlatTensor& host) {
  if (!parameters.values_on_host()) return {parameters.flat_gradient(), host};
  return {parameters.flat_gradient(), parameters.summed_gradient(), /*stays=*/true};
}

GradientExchange::GradientExchange(Collective& collective, const Memory& memory,
                                   std::vector<int64_t> bucket_ends, Wire wire)
    : collective_(collective),
      wire_(wire),
      gradient_(memory.gradient),
      host_(memory.host),
      stays_(memory.stays),
      transfers_(gradient_.defined() ? gradient_.device() : torch::Device(torch::kCPU)),
      ends_(std::move(bucket_ends)) {
  ESPALIER_CHECK(ends_.empty() || ends_.back() <= gradient_.numel(),
                 "buckets must lie within the gradient");
}

// Where the sums are made.
FlatTensor& GradientExchange::Summed() { return InPlace() ? gradient_ : host_; }

bool GradientExchange::Alone() const {
  if (ends_.empty()) return true;
  const bool lacking = wire_.residual != nullptr && wire_.residual->kept();
  return collective_.world_size() == 1 && !lacking && !Exact() && !stays_;
}

torch::Tensor GradientExchange::Bucket(const FlatTensor& of, size_t bucket) const {
  const int64_t begin = bucket == 0 ? 0 : ends_[bucket - 1];
  return of.Slice(begin, ends_[bucket] - begin);
}

absl::Span<float> GradientExchange::AddExactly(size_t bucket, const torch::Tensor& values) {
  const int64_t begin = bucket == 0 ? 0 : ends_[bucket - 1];
  wire_.exact->Add(begin, SpanOf(values), wire_.scale->value());
  return wire_.exact->Of(begin, values.numel());
}

void GradientExchange::Collect() {
  if (!Exact()) return;
  for (size_t bucket = 0; bucket < ends_.size(); ++bucket) {
    torch::Tensor values = Bucket(gradient_, bucket);
    if (InPlace()) {
      AddExactly(bucket, values);
      continue;
    }
    transfers_.ToHost(values, Bucket(host_, bucket)).Wait();
    values.zero_();
    AddExactly(bucket, Bucket(host_, bucket));
  }
}

void GradientExchange::GradientsFinal(int64_t end) {
  if (Alone()) return;
  if (copies_.empty() && wire_.residual != nullptr) {
    wire_.residual->Scatter(collective_.rank(), collective_.world_size());
  }
  while (copies_.size() < ends_.size() && ends_[copies_.size()] <= end) {
    const size_t bucket = copies_.size();
    copies_.push_back(InPlace()
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
    const torch::Tensor values = Bucket(Summed(), bucket);
    if (Exact()) {
      tickets_.push_back(collective_.StartAllReduce(
          {.values = AddExactly(bucket, values), .wire = WireType::kInt64}));
      continue;
    }
    const int64_t begin = bucket == 0 ? 0 : ends_[bucket - 1], size = values.numel();
    tickets_.push_back(collective_.StartAllReduce(
        {SpanOf(values), wire_.type,
         wire_.residual == nullptr ? absl::Span<float>() : wire_.residual->Of(begin, size)}));
  }
}

absl::Status GradientExchange::StartRest() {
  if (Alone()) return absl::OkStatus();
  return CatchTorch("starting the exchange of gradients", [&] {
    GradientsFinal(ends_.back());
    StartCopied(/*wait=*/true);
    if (!Exact()) return;
    lost_ = collective_.StartAllReduce({.values = wire_.exact->Lost(), .wire = WireType::kInt64});
  });
}

absl::Status GradientExchange::Finish() {
  absl::Status status;
  // Whether an element was lost, and all with it, is known when all sums are.
  if (lost_) status = collective_.Wait(*lost_);
  for (size_t bucket = 0; status.ok() && bucket < tickets_.size(); ++bucket) {
    status = collective_.Wait(tickets_[bucket]);
    if (status.ok() && lost_) {
      wire_.exact->Take(bucket == 0 ? 0 : ends_[bucket - 1], SpanOf(Bucket(Summed(), bucket)),
                        wire_.scale->value());
    }
    if (!status.ok() || InPlace() || stays_) continue;
    status = CatchTorch("copying the gradient to the device", [&] {
      transfers_.ToDevice(Bucket(host_, bucket), Bucket(gradient_, bucket));
    });
  }
  if (status.ok() && lost_) wire_.exact->Restart();
  lost_.reset();
  copies_.clear();
  tickets_.clear();
  if (status.ok()) status = CatchTorch("joining transfers", [&] { transfers_.Join(); });
  return status;
}

}  // namespace espalier
