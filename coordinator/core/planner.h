// The shard planner: which rank computes how many sequences of every step. Used by directives.cc,
// hand_started.cc and submit.cc when a generation starts. Pure: any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/core/job_record.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

struct PlanRequest {
  // Of the plan to be made.
  int64_t number = 0;
  int32_t ranks = 0;
  const v1::JobSpec& spec;
};

// Divides the global batch by parallel.shares (common/base/shares.h), or evenly when there are
// none. The plan holds from step 0 on, so that a generation may start from any state. The shares
// must fit (CheckShares).
ShardPlan MakePlan(const PlanRequest& request);

// INVALID_ARGUMENT when parallel.shares is neither empty nor one entry per rank with a sum above 0.
absl::Status CheckShares(const v1::JobSpec& spec, int32_t ranks);

}  // namespace espalier
