// AllReduceSynchroniser: sums of the gradient over all ranks in buckets, and of the embedding's
// lookups apart; every rank then makes the same update of its replica.
// Used by worker/session.cc, which keeps it as long as the collective: what is in the exchange when
// a step fails must last. Threads as synchroniser.h says.
#pragma once

#include <cstdint>

#include "worker/collective/collective.h"
#include "worker/model/parameters.h"
#include "worker/optimizer/precision.h"
#include "worker/sync/exact_sums.h"
#include "worker/sync/gradient_exchange.h"
#include "worker/sync/gradient_residual.h"
#include "worker/sync/lookup_exchange.h"
#include "worker/sync/synchroniser.h"

namespace espalier {

class AllReduceSynchroniser final : public Synchroniser {
 public:
  // The parts of a replica; they outlive this and the operations of the collective.
  struct Parts {
    Parameters& parameters;
    AdamW& optimizer;
    GradientResidual& residual;
    // Where sums of a gradient that is on a device are made; not used on the CPU.
    FlatTensor& host_gradient;
    // Kept: sums are exact (train.reproducible), with what gradients are multiplied by. The
    // embedding's lookups then do not travel apart: its gradient is of the whole table.
    ExactSums* exact = nullptr;
    const LossScale* scale = nullptr;
  };
  struct Options {
    WireType wire = WireType::kFp32;
    // Elements of a bucket, at least; the same on all ranks.
    int64_t bucket_elements = int64_t{1} << 20;
  };
  AllReduceSynchroniser(Collective& collective, const Parts& parts, const Options& options);

  absl::StatusOr<EmbeddingRows> Begin(absl::Span<const int64_t> tokens) override;
  int64_t LookupBytes(absl::Span<const int64_t> tokens) const override;
  void PassDone() override;
  void GradientsFinal(int64_t end) override;
  absl::Status PassesDone() override;
  absl::Status FinishSums() override;
  absl::StatusOr<StepTotals> Agree(const StepTotals& mine) override;
  absl::Status Update(const AdamW::Update& update) override;
  absl::Status Skip() override;

 private:
  bool Exact() const { return parts_.exact != nullptr && parts_.exact->kept(); }

  Collective& collective_;
  Parts parts_;
  GradientExchange exchange_;
  LookupExchange lookups_;
};

// The wire of parallel.gradient_dtype.
WireType WireOf(v1::GradientDtype dtype);

}  // namespace espalier
