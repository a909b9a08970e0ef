// GradientResidual: what this rank's gradients still lack in the sums they went into, where they
// travel as int8 (see worker/collective/wire.h). The one thing in which replicas differ between
// steps; what counts is its sum over the ranks. At a checkpoint, and at the start, every rank holds
// that sum; the next step divides it, each element to one rank. So a checkpoint does not depend on
// the number of ranks, and is part of the arithmetic: runs with the same checkpoints are equal to
// the bit, resumed or not.
// Used by all_reduce.h, gradient_exchange.h and worker/state (the replica and its checkpoints).
// Compute thread; Scatter and Of also from the thread that runs the backward pass.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/sync/together.h"
#include "worker/tensor/torch.h"

namespace espalier {

class GradientResidual {
 public:
  // From now on one is kept, of zeros. RESOURCE_EXHAUSTED names the bytes.
  absl::Status Keep(int64_t elements);
  bool kept() const { return values_.defined(); }
  // [elements] fp32 on the host; the sum over all ranks when gathered().
  torch::Tensor& values() { return values_; }
  bool gathered() const { return gathered_; }

  // Elements of one operation of Gather: few enough to show progress several times a second.
  static constexpr int64_t kGatheredAtOnce = int64_t{4} << 20;

  // Gives every rank the sum. All ranks call it at the same place; errors are the collective's.
  absl::Status Gather(const RankContext& context);
  // After Gather, a load or the start: leaves this rank its share. Nothing otherwise.
  void Scatter(Rank rank, int ranks);
  // What is owed is in units of the gradients, which the loss scale multiplies: for another one.
  // Nothing when none is kept.
  void Rescale(double factor);
  // Elements [begin, begin + size); empty when none is kept.
  absl::Span<float> Of(int64_t begin, int64_t size);

 private:
  torch::Tensor values_;
  bool gathered_ = true;
};

}  // namespace espalier
