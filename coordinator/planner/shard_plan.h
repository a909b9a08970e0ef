// ShardPlan: which rank computes how many sequences of every step; and the plans that do not depend
// on measurements. Used by planner.h, coordinator/core and coordinator/service. Plain values and
// pure functions: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// Sequences of each rank for the steps from from_step on; they add up to the global batch.
struct ShardPlan {
  int64_t number = 0;
  Step from_step;
  std::vector<int32_t> sequences;
  // The numbers it came from, for people.
  std::string reason;
  // When it was decided upon, in Unix time.
  int64_t decided_ms = 0;
  friend bool operator==(const ShardPlan&, const ShardPlan&) = default;
};

// Of completions that are sampled, which ranks take as they are ready for them, a rank's at most:
// of what it would do in the time of the others, and of all.
struct RankLimit {
  double part = 1;
  double largest_share = 1;
  friend bool operator==(const RankLimit&, const RankLimit&) = default;
};

struct PlanRequest {
  // Of the plan to be made.
  int64_t number = 0;
  int32_t ranks = 0;
  const v1::JobSpec& spec;
};

// Divides the global batch by parallel.shares (common/base/shares.h), or evenly when there are
// none. The plan holds from step 0 on, so that a generation may start from any state. The shares
// must fit (CheckShares).
ShardPlan FixedPlan(const PlanRequest& request);

// The job's plan follows measured speed (parallel.plan).
bool PlansBySpeed(const v1::JobSpec& spec);

// Its ranks sample completions besides, as they are ready for them.
bool Samples(const v1::JobSpec& spec);

// INVALID_ARGUMENT when parallel.shares is neither empty nor one entry per rank with a sum above 0;
// or when the plan follows measured speed and there are more ranks than sequences, for a rank that
// computes nothing shows no speed.
absl::Status CheckShares(const v1::JobSpec& spec, int32_t ranks);

}  // namespace espalier
