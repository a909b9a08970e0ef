// Changes of what is wanted of the newest generation, and their delivery; one of them is another
// shard plan, which follows the speed of the ranks (coordinator/planner). Used by coordinator/core.
// One thread.
#pragma once

#include "coordinator/core/job_record.h"
#include "coordinator/core/transaction.h"

namespace espalier {

struct DirectiveChange {
  RunState run_state = RunState::kRun;
  // With kStop.
  bool checkpoint_before_stop = false;
};

// The first directive of a new generation on the record's nodes, by the job's desired state. Its
// plan holds from step 0 on, so that the generation may start from any state. The shares must fit
// (CheckShares of coordinator/planner/shard_plan.h).
void FirstDirective(Transaction& transaction, Job& job);
// Makes the newest directive say this, and sends it when that changes it.
void ChangeDirective(Transaction& transaction, Job& job, const DirectiveChange& change);
// Asks for one more checkpoint at the next boundary.
void AskForCheckpoint(Transaction& transaction, Job& job);

// Every rank has obeyed the present run state.
bool EveryRankObeyed(const Job& job);
// A stop is wanted, and rank 0, which writes what is to be kept, has obeyed it.
bool StopObeyed(const Job& job);

// A rank has reported a step, not its first of the generation: what it teaches of its node.
void NoteSpeed(Job& job, const NodeName& node, const StepFigures& figures);
// When every rank has reported one more step: moves to a better plan where that is worth while. The
// ranks adopt it at the next step boundary.
void ReconsiderPlan(Transaction& transaction, Job& job);

// Looked at now and then: tells the ranks of a job that samples when one of its nodes is spared, or
// is not any more, or has another largest share.
void HeedLimits(Transaction& transaction, Job& job);

// The end of a reason for such a stop.
inline constexpr char kStopsWithCheckpoint[] = "; stops with a checkpoint";

}  // namespace espalier
