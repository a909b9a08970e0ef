// Changes of what is wanted of the newest generation, and their delivery; and the shard plan: which
// rank computes how many sequences of every step. Used by coordinator/core. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "coordinator/core/job_record.h"
#include "coordinator/core/transaction.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

struct DirectiveChange {
  RunState run_state = RunState::kRun;
  // With kStop.
  bool checkpoint_before_stop = false;
};

// The first directive of a new generation of `ranks` ranks, by the job's desired state.
void FirstDirective(Job& job, int32_t ranks);
// Makes the newest directive say this, and sends it when that changes it.
void ChangeDirective(Transaction& transaction, Job& job, const DirectiveChange& change);
// Asks for one more checkpoint at the next boundary.
void AskForCheckpoint(Transaction& transaction, Job& job);

// Every rank has obeyed the present run state.
bool EveryRankObeyed(const Job& job);
// A stop is wanted, and rank 0, which writes what is to be kept, has obeyed it.
bool StopObeyed(const Job& job);

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
