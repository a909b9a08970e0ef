// Changes of what is wanted of the newest generation, and their delivery. Used by coordinator/core.
// One thread.
#pragma once

#include <string>

#include "coordinator/core/context.h"

namespace espalier {

struct DirectiveChange {
  RunState run_state = RunState::kRun;
  // With kStop.
  bool checkpoint_before_stop = false;
};

// The first directive of a new generation of `ranks` ranks, by the job's desired state.
void FirstDirective(Job& job, int32_t ranks);
// Makes the newest directive say this, and sends it when that changes it.
void ChangeDirective(Context& context, Job& job, const DirectiveChange& change);
// Asks for one more checkpoint at the next boundary.
void AskForCheckpoint(Context& context, Job& job);

// Every rank has obeyed the present run state.
bool EveryRankObeyed(const Job& job);
// A stop is wanted, and rank 0, which writes what is to be kept, has obeyed it.
bool StopObeyed(const Job& job);

}  // namespace espalier
