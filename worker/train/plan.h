// The part of each rank: sequences per rank of a step, made here for runs without a coordinator and
// checked when they come from one. Used by micro_batches.cc, pass_memory.cc and step_boundary.cc.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/worker.pb.h"
#include "worker/rollout/rollout.h"

namespace espalier {

// Global batch divided by parallel.shares (common/base/shares.h; empty: evenly). INVALID_ARGUMENT
// when there is not one share per rank, or none above 0.
absl::StatusOr<v1::ShardPlan> PlanFromShares(const v1::JobSpec& spec, int world_size);

// What a rank samples at most, between two steps: as the directive says, which holds as soon as it
// comes, and by parallel.shares.
RolloutLimit SamplingLimit(const v1::Directive& directive, const v1::JobSpec& spec, Rank rank);

// batch.micro_batch of a rank; none when the job gives none. INVALID_ARGUMENT unless there is one
// value, or one per rank.
absl::StatusOr<std::optional<int64_t>> MicroBatchOf(const v1::BatchSpec& spec, Rank rank,
                                                    int world_size);

// Rows of `shard` cut into the fewest micro-batches of at most `micro_batch` rows, as equal as they
// can be.
std::vector<int64_t> MicroBatchSizes(int64_t shard, int64_t micro_batch);

}  // namespace espalier
