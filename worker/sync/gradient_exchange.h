// GradientExchange: sums the flat gradient over the ranks in buckets, each started as soon as the
// backward pass has finished it, so that the exchange overlaps the rest of the pass. Bucket
// boundaries follow from the model alone: all ranks start the same sums, whatever their shard.
// Used by the trainer. Compute thread; Final also from the thread that runs the backward pass.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "espalier/v1/job.pb.h"
#include "worker/collective/collective.h"
#include "worker/model/parameters.h"
#include "worker/sync/gradient_residual.h"
#include "worker/tensor/transfers.h"

namespace espalier {

// Ends of the buckets, growing: parameters in flat order, closed at the first end of one that makes
// a bucket of `target_elements`, or of a quarter of what follows (but not the least), so that
// little is left to send when the last gradients are known. They cover all but an embedding of its
// own (lookup_exchange.h).
std::vector<int64_t> BucketEnds(absl::Span<const Parameter> parameters, int64_t target_elements);

// The wire of parallel.gradient_dtype.
WireType WireOf(v1::GradientDtype dtype);

class GradientExchange {
 public:
  // How gradients travel, and what they leave behind.
  struct Wire {
    WireType type = WireType::kFp32;
    GradientResidual* residual = nullptr;  // none: forgotten
  };
  // `gradient` [elements] fp32 on any device, of which the buckets are summed; sums go through host
  // memory where it is not the CPU.
  GradientExchange(Collective& collective, torch::Tensor gradient, std::vector<int64_t> bucket_ends,
                   Wire wire);

  // Elements [0, end) are final: begins with every bucket within them. Where the gradient is on a
  // device, this waits for nothing: a bucket starts when its copy is in host memory.
  void Final(int64_t end);
  // All buckets are final: starts what is left, on a device having waited for it.
  absl::Status Begin();
  // Waits for all sums after Begin: the gradient holds them then. After an error its contents are
  // undefined.
  absl::Status Finish();

 private:
  torch::Tensor Bucket(const torch::Tensor& of, size_t bucket) const;
  // This rank's gradient is the sum, and lacks nothing.
  bool Alone() const;
  // Starts the sums of buckets whose copies have come; of all, having waited, or until one has not.
  void StartCopied(bool wait);

  Collective& collective_;
  const Wire wire_;
  torch::Tensor gradient_;
  torch::Tensor host_;  // the gradient itself on the CPU
  Transfers transfers_;
  std::vector<int64_t> ends_;
  std::vector<Transfers::Copy> copies_;  // of the buckets that are final
  std::vector<Ticket> tickets_;          // of those that are started
};

}  // namespace espalier
