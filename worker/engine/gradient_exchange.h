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
#include "worker/engine/gradient_residual.h"
#include "worker/model/parameters.h"

namespace espalier {

// Ends of the buckets, growing, the last one the number of elements: parameters in flat order,
// closed at the first end of a layer (or of the head) that makes a bucket of `target_elements`.
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
  // `gradient` [elements] fp32 on any device; sums go through host memory where it is not the CPU.
  GradientExchange(Collective& collective, torch::Tensor gradient, std::vector<int64_t> bucket_ends,
                   Wire wire);

  // Elements [0, end) are final: starts every bucket within them that was not started.
  void Final(int64_t end);
  // Starts what is left and waits for all: the gradient holds the sums then. After an error its
  // contents are undefined.
  absl::Status Finish();

 private:
  Collective& collective_;
  const Wire wire_;
  torch::Tensor gradient_;
  torch::Tensor host_;  // the gradient itself on the CPU
  std::vector<int64_t> ends_;
  size_t started_ = 0;
  Ticket last_;
};

}  // namespace espalier
