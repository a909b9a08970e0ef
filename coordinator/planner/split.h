// SplitBatch: a global batch divided among ranks so that the last to finish is done as early as can
// be. Used by planner.h and tests/bench. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/planner/speed_model.h"

namespace espalier {

struct Runner {
  StepTime time;
  // Sequences that it must and may get.
  int32_t least = 1;
  int32_t most = INT32_MAX;
};

// Sequences of each runner, `batch` in all. As if one after the other went to whoever would finish
// it first, of equals to the first: no other division has an earlier latest finish.
// INVALID_ARGUMENT when the runners must get more than there is, or may not get as much.
absl::StatusOr<std::vector<int32_t>> SplitBatch(int32_t batch, absl::Span<const Runner> runners);

// When the latest is done.
double LatestFinish(absl::Span<const int32_t> sequences, absl::Span<const Runner> runners);
// The mean over the runners.
double MeanFinish(absl::Span<const int32_t> sequences, absl::Span<const Runner> runners);

}  // namespace espalier
