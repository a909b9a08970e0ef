// LookupExchange: the gradient of the embedding's lookups, apart from the dense rest, and its sum
// over the ranks. It is the last one to be known and touches only the rows of the ids of the step:
// those rows travel, in a short sum after the backward pass, instead of the whole table. While that
// pass runs, a tied table carries the head's gradient alone, which is known first and travels
// first. An untied embedding stays in rows until the update (EmbeddingGradient::kRowsApart); a
// frozen one has no part in this. Used by all_reduce.h. Compute thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/collective/collective.h"
#include "worker/model/model.h"
#include "worker/model/parameters.h"
#include "worker/tensor/torch.h"

namespace espalier {

class LookupExchange {
 public:
  // The parameters outlive this. `wire`: of the rows; int8 counts as bf16, since nothing keeps what
  // it would leave out.
  LookupExchange(Collective& collective, Parameters& parameters, WireType wire);

  // Bytes that Begin takes for these tokens on the device until StartSum.
  int64_t Bytes(absl::Span<const int64_t> tokens) const;

  // A step begins in which this rank looks up no other ids than `tokens`. The passes of the step
  // take the rows that are returned. Empty without tokens, and where there is nothing to be had
  // from it: no gradient, or alone in the world a dense one. All ranks call this and what follows
  // at the same places of a step.
  absl::StatusOr<EmbeddingRows> Begin(absl::Span<const int64_t> tokens);
  // After the backward passes: starts the sum of the rows that any rank has looked up, once all
  // ranks have begun the step and said which.
  absl::Status StartSum();
  // Waits for it and adds it to the gradient of the embedding, or makes it Parameters'
  // lookup_gradient. After an error of any of these the gradient is undefined.
  absl::Status Finish();

 private:
  bool Needed() const;
  std::vector<float> UsedBy(absl::Span<const int64_t> tokens) const;
  // Of the tensor that the rows of so many ids are in; no token refers to those behind.
  int64_t RowsFor(int64_t ids) const;

  Collective& collective_;
  Parameters& parameters_;
  const WireType wire_;
  torch::Tensor table_;        // [V, C] fp32
  torch::Device device_;       // that looks up
  torch::Tensor gradient_;     // [V, C] fp32, of a dense one
  std::vector<float> used_;    // [V]: by how many ranks; in the exchange until StartSum
  std::vector<int64_t> mine_;  // ids that this rank looks up, growing
  torch::Tensor rows_;         // [RowsFor(mine), C], a leaf
  std::vector<int64_t> all_;   // ids that any rank looks up, growing
  torch::Tensor sums_;         // [all, C] on the host
  std::optional<Ticket> used_ticket_, sums_ticket_;
};

}  // namespace espalier
