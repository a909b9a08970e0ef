// The life of a generation: started, watched, judged lost, ended, gone; and where the job goes from
// there. Used by coordinator/core. One thread.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/liveness.h"
#include "coordinator/core/transaction.h"

namespace espalier {

// Next generation on these nodes: QUEUED, RECOVERING or REGROUPING -> LAUNCHING.
void StartGeneration(Transaction& transaction, Job& job, const std::vector<NodeName>& nodes,
                     const std::string& reason);
// A new, empty world of so many ranks for the newest generation.
void ResetWorld(Transaction& transaction, Job& job, size_t ranks);

// Every rank has joined and agreed: LAUNCHING -> RUNNING, or on towards the desired state.
void OnEveryRankReady(Transaction& transaction, Job& job);
// PAUSING -> PAUSED_SOFT once every rank waits.
void CheckPaused(Transaction& transaction, Job& job);

// Looks at every deadline of the job.
void WatchJob(Transaction& transaction, Job& job);
// The generation is gone when the launcher says so and the last words are heard, or when every
// worker of a hand-started mpirun has left.
void CheckGone(Transaction& transaction, Job& job);
// The generation cannot go on. Ends it, and counts the fault where a restart follows.
void OnFault(Transaction& transaction, Job& job, const Fault& fault);
// Ranks have failed by themselves: ends the job when the failure is its own, else the generation.
void SettleFailure(Transaction& transaction, Job& job);
// How the job will end is known; the processes have until failure_timeout to leave by themselves.
void Decide(Transaction& transaction, Job& job, Verdict verdict, const std::string& reason);
// Ends what runs of the newest generation. Repeating is harmless.
void EndGeneration(Transaction& transaction, Job& job);
// Nobody ends a hand-started mpirun but its person: it is gone when its leases are over.
void LeaveToThemselves(Transaction& transaction, Job& job);
// Nothing of the newest generation runs any more; `how` it ended, for people. Where that is not
// certain, waits until the leases of those ranks are over.
void OnGone(Transaction& transaction, Job& job, const std::string& how);
// Moves a job without processes on from a state that waited for them to end.
void Settle(Transaction& transaction, Job& job, const std::string& how);

}  // namespace espalier
