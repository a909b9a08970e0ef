// GradientExchange: sums the flat gradient over the ranks in buckets, each started as soon as the
// backward pass has finished it, so that the exchange overlaps the rest of the pass. Bucket
// boundaries follow from the model alone: all ranks start the same sums, whatever their shard. In
// sums that are to be reproducible each pass is an addend, which Collect takes.
// Used by all_reduce.h. Compute thread; GradientsFinal also from the thread of the backward pass.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/job.pb.h"
#include "worker/collective/collective.h"
#include "worker/model/parameters.h"
#include "worker/optimizer/precision.h"
#include "worker/sync/exact_sums.h"
#include "worker/sync/gradient_residual.h"
#include "worker/tensor/torch.h"
#include "worker/tensor/transfers.h"

namespace espalier {

// Ends of the buckets, growing: parameters in flat order, closed at the first end of one that makes
// a bucket of `target_elements`, or of a quarter of what follows (but not the least), so that
// little is left to send when the last gradients are known; and where an arena ends. They cover the
// first `elements` of what is trained, which end with a parameter.
std::vector<int64_t> BucketEnds(const Parameters& parameters, int64_t elements,
                                int64_t target_elements);

class GradientExchange {
 public:
  // The gradient [elements] fp32 on any device, and memory of the host for its sums, of the same
  // arenas, where that is not the CPU. Both outlive every operation of the collective.
  struct Memory {
    FlatTensor& gradient;
    FlatTensor& host;
    bool stays = false;  // the sums are read from `host`, and do not go back to the gradient
  };
  // Of parameters: `host` where what is trained lies on their device, else their own sums.
  static Memory MemoryOf(Parameters& parameters, FlatTensor& host);
  // How gradients travel, and what they leave behind.
  struct Wire {
    WireType type = WireType::kFp32;
    GradientResidual* residual = nullptr;  // none: forgotten
    ExactSums* exact = nullptr;            // kept: sums are made there, and travel as integers
    const LossScale* scale = nullptr;      // of the gradients; with `exact`
  };
  // No buckets: there is nothing to sum.
  GradientExchange(Collective& collective, const Memory& memory, std::vector<int64_t> bucket_ends,
                   Wire wire);

  // A pass has run, which is not the last one: exact sums take its gradients, which are zero then.
  // Nothing otherwise. Throws what LibTorch throws; done again, it takes the rest.
  void Collect();
  // Elements [0, end) are final: begins with every bucket within them. Where the gradient is on a
  // device, this waits for nothing: a bucket starts when its copy is in host memory.
  void GradientsFinal(int64_t end);
  // All buckets are final: starts what is left, on a device having waited for it.
  absl::Status StartRest();
  // Waits for all sums after StartRest: the gradient holds them then, or the host's memory. After
  // an error its contents are undefined.
  absl::Status Finish();

 private:
  FlatTensor& Summed();
  // The gradient becomes the sum, without a copy.
  bool InPlace() const { return gradient_.is_cpu() && !stays_; }
  bool Exact() const { return wire_.exact != nullptr && wire_.exact->kept(); }
  // Adds a bucket whose values are on the host to the exact sums, and makes them zero.
  absl::Span<float> AddExactly(size_t bucket, const torch::Tensor& values);
  torch::Tensor Bucket(const FlatTensor& of, size_t bucket) const;
  // This rank's gradient is the sum, and lacks nothing.
  bool Alone() const;
  // Starts the sums of buckets whose copies have come; of all, having waited, or until one has not.
  void StartCopied(bool wait);

  Collective& collective_;
  const Wire wire_;
  FlatTensor& gradient_;
  FlatTensor& host_;
  const bool stays_;
  Transfers transfers_;
  std::vector<int64_t> ends_;
  std::vector<Transfers::Copy> copies_;  // of the buckets that are final
  std::vector<Ticket> tickets_;          // of those that are started
  std::optional<Ticket> lost_;           // of the number of lost elements, after them
};

}  // namespace espalier
