// Synchroniser: how replicas agree on a step. Passes leave gradient sums in a replica's flat
// gradient; the synchroniser makes the sums over all ranks of them and updates the replica, so that
// replicas that were equal are equal again. All ranks call the same methods in the same order.
// Implementation: all_reduce.h (every rank holds all of the sum, and updates all of the replica).
// Used by worker/train. Compute thread; GradientsFinal also from the thread of the backward pass.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/model.h"
#include "worker/optimizer/optimizer.h"

namespace espalier {

// What is known of a step besides its gradient. Plain: it travels as bytes.
struct StepTotals {
  double loss = 0;     // sum over tokens, in nats
  int64_t tokens = 0;  // that count in the loss
  int64_t finite = 1;  // whether the loss of every rank is
  double norm = 0;     // of the summed gradient; not finite when an element is not
  int64_t failed = 0;  // ranks that could not log their samples
};

class Synchroniser {
 public:
  virtual ~Synchroniser() = default;

  // A step begins, in which this rank looks up no other ids than `tokens`: the rows of the
  // embedding that its passes take in place of the table, or none. RESOURCE_EXHAUSTED before
  // anything has begun.
  virtual absl::StatusOr<EmbeddingRows> Begin(absl::Span<const int64_t> tokens) = 0;
  // Bytes of the device that Begin takes for them.
  virtual int64_t LookupBytes(absl::Span<const int64_t> tokens) const = 0;

  // A pass has run, which is not the last one. Throws what LibTorch throws; may be called again
  // after that.
  virtual void PassDone() {}
  // In the last pass: gradients of flat elements [0, end) are final. Waits for nothing
  // where the device has streams.
  virtual void GradientsFinal(int64_t end) = 0;
  // All passes have run, or there were none: what is left begins to travel. Waits for the device,
  // not for other ranks: it counts as computing.
  virtual absl::Status PassesDone() = 0;
  // Waits for the sums of the gradient; RESOURCE_EXHAUSTED when there is no memory for them. After
  // an error the gradient is undefined.
  virtual absl::Status FinishSums() = 0;
  // This rank's part of a step (its norm is ignored) to that of all: the same bits on all ranks.
  virtual absl::StatusOr<StepTotals> Agree(const StepTotals& mine) = 0;

  // Ends the step with an update, or without one; gradients are zero afterwards.
  virtual absl::Status Update(const AdamW::Update& update) = 0;
  virtual absl::Status Skip() = 0;
};

}  // namespace espalier
