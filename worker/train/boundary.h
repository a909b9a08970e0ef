// Boundary: what rank 0 tells all ranks before each step (invariant "Agreement": whatever changes
// the collective schedule is obeyed by all ranks at the same step). A small message of fixed size.
// Used by step_boundary.h. Compute thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "espalier/v1/worker.pb.h"
#include "worker/collective/collective.h"

namespace espalier {

inline constexpr int kMaxRanks = 64;

// Plain: it travels as bytes. All ranks of a world run the same program on little-endian machines.
struct Boundary {
  int64_t step = 0;  // of rank 0: the others must be there too
  int64_t directive = 0;
  int64_t checkpoint_request = 0;
  int32_t run_state = 0;  // v1::RunState
  int32_t checkpoint_before_stop = 0;
  int64_t plan = 0;
  int64_t plan_from_step = 0;
  int32_t plan_ranks = 0;  // 0: no plan
  int32_t reserved = 0;
  // Computed by rank 0 alone, since mathematical libraries differ in the last bit.
  double learning_rate = 0;
  std::array<int32_t, kMaxRanks> sequences{};

  v1::RunState state() const { return static_cast<v1::RunState>(run_state); }
};

// Rank 0's message. INVALID_ARGUMENT for a plan of more than kMaxRanks ranks.
absl::StatusOr<Boundary> BoundaryFromDirective(const v1::Directive& directive, Step step);

// Gives every rank rank 0's message; `mine` is ignored elsewhere, but for its step: a rank that is
// at another step is INTERNAL.
absl::StatusOr<Boundary> MeetAtBoundary(Collective& collective, const Boundary& mine);

// The sequences per rank of the message's plan. INVALID_ARGUMENT unless it names every rank and
// adds up to the global batch.
absl::StatusOr<std::vector<int64_t>> SequencesOfPlan(const Boundary& boundary, int world_size,
                                                     int64_t global_batch);

}  // namespace espalier
