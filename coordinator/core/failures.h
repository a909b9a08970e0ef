// Failures: errors that ranks met by themselves, and whose fault they are. One machine's (its
// device, disk or memory) is a fault like the loss of a rank; what every rank meets, or what comes
// again elsewhere, is the job's own and ends it. Used by generation.cc and reports.cc. One thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/core/context.h"
#include "coordinator/core/event.h"
#include "coordinator/core/liveness.h"

namespace espalier {

// The kind of error that input and settings cause: the same ones give it again.
bool IsBadInput(absl::StatusCode code);

// Takes up what a worker said with Outcome::kFailed, of itself or of the ranks it names.
void NoteFailure(Job& job, Rank sender, const WorkerFinished& report);

// Every rank of the generation has met the same kind of bad input.
bool FailedEverywhere(const Job& job);

struct Judgement {
  // It would come again on any machine.
  bool ends_job = false;
  // What happened, and the first rank that met it.
  Fault fault;
};

// Judges the failures noted so far, at least one, and remembers them for the next generation. They
// end the job when every rank met the same bad input; or when the last failure before was of the
// same kind at the same step, and either nodes differ or it is bad input on a node that the job
// cannot spare.
Judgement JudgeFailure(const ClusterState& state, Job& job);

}  // namespace espalier
