// MicroBatches: cuts a rank's shard of a step into micro-batches of the size that the memory
// governor says, and when one runs out of memory, computes that one again in halves, without adding
// anything twice. Used by gradient_passes.h. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/order.h"
#include "worker/memory/memory_governor.h"
#include "worker/tensor/torch.h"

namespace espalier {

class MicroBatches {
 public:
  // Forward and backward pass over some rows of the shard, gradients added in place; `last`: after
  // it the gradients of the shard are final. Throws what LibTorch throws; what it counts besides
  // gradients, it counts when it has succeeded.
  using Pass = std::function<void(SlotRange rows, bool last)>;

  // `free_caches` gives memory that is only kept back to the system.
  MicroBatches(MemoryGovernor& governor, std::function<void()> free_caches);

  // All rows [0, rows). `leaves`: whose gradients the passes add to, as
  // Parameters::GradientLeaves. RESOURCE_EXHAUSTED when not even one row fits.
  absl::Status Run(int64_t rows, std::vector<torch::Tensor> leaves, const Pass& pass);
  // Rows of the largest micro-batch of the last Run that succeeded.
  int64_t largest() const { return largest_; }

 private:
  absl::Status RunRange(SlotRange rows, bool last, const Pass& pass, bool retried);
  absl::Status RunHalves(SlotRange rows, bool last, const Pass& pass);

  std::vector<torch::Tensor> leaves_;  // of the Run under way
  MemoryGovernor& governor_;
  std::function<void()> free_caches_;
  int64_t largest_ = 0;
};

}  // namespace espalier
