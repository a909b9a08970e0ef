#include "worker/train/micro_batches.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/tensor/torch_compat.h"
#include "worker/train/plan.h"

namespace espalier {

MicroBatches::MicroBatches(MemoryGovernor& governor, std::function<void()> free_caches)
    : governor_(governor), free_caches_(std::move(free_caches)) {}

absl::Status MicroBatches::Run(int64_t rows, std::vector<torch::Tensor> leaves, const Pass& pass) {
  largest_ = 0;
  leaves_ = std::move(leaves);
  const absl::Cleanup forget = [this] { leaves_.clear(); };
  SlotRange next;
  while (next.end < rows) {
    next = {next.end, next.end + MicroBatchSizes(rows - next.end, governor_.micro_batch())[0]};
    RETURN_IF_ERROR(RunRange(next, next.end == rows, pass, /*retried=*/false));
  }
  return absl::OkStatus();
}

// A failed pass has added the gradients of some leaves and not those of others. The former are
// complete, since kernels allocate before they add; their versions have moved. They need no
// gradient while the pass is done again, which leaves everything else to be added once. The
// exchange may have taken complete ones already; it is told of later ones by the last half.
absl::Status MicroBatches::RunRange(SlotRange rows, bool last, const Pass& pass, bool retried) {
  std::vector<int64_t> versions;
  for (const torch::Tensor& leaf : leaves_) versions.push_back(leaf.grad()._version());
  const absl::Status status = CatchTorch("forward and backward pass", [&] { pass(rows, last); });
  if (status.ok()) largest_ = std::max(largest_, rows.size());
  if (!absl::IsResourceExhausted(status)) return status;
  std::vector<torch::Tensor> complete;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const bool added = leaves_[i].grad()._version() != versions[i];
    if (added && leaves_[i].requires_grad()) complete.push_back(leaves_[i]);
  }
  for (torch::Tensor& leaf : complete) leaf.set_requires_grad(false);
  const absl::Cleanup restore = [&] {
    for (torch::Tensor& leaf : complete) leaf.set_requires_grad(true);
  };
  if (rows.size() == 1 && retried) return status;
  free_caches_();
  if (rows.size() == 1) return RunRange(rows, last, pass, /*retried=*/true);
  governor_.Failed(rows.size());
  LogWarning(absl::StrCat(status.message(), "; these ", rows.size(),
                          " sequences are done again in halves, and micro-batches hold ",
                          governor_.micro_batch(), " from now on"));
  return RunHalves(rows, last, pass);
}

// Halves of more than what is allowed now are cut further.
absl::Status MicroBatches::RunHalves(SlotRange rows, bool last, const Pass& pass) {
  const int64_t middle = rows.begin + (rows.size() + 1) / 2;
  for (const SlotRange half : {SlotRange{rows.begin, middle}, SlotRange{middle, rows.end}}) {
    const bool last_half = last && half.end == rows.end;
    const bool fits = half.size() <= governor_.micro_batch();
    RETURN_IF_ERROR(fits ? RunRange(half, last_half, pass, /*retried=*/false)
                         : RunHalves(half, last_half, pass));
  }
  return absl::OkStatus();
}

}  // namespace espalier
