// How a worker ends: its exit codes, one per kind of end (README.md has the table); and last words:
// a worker that dies of a signal or of std::terminate leaves one line that names its rank, the step
// and the phase it was in, since no status can be returned any more. Used by worker/run.cc,
// worker/command_line.cc and worker/main.cc. Any thread.
#pragma once

#include "absl/status/status.h"
#include "worker/control/progress.h"

namespace espalier {

enum class WorkerExit : int {
  kDone = 0,      // completed, or stopped as a directive said
  kFailed = 1,    // an error of its own, but for the reasons of kBadInput
  kBadInput = 2,  // command line, job file, data or model folder
  kLost = 3,      // a peer was lost or a wait ran out: a new generation may mend it
  kFenced = 4,    // espalierd has started a newer generation
};

WorkerExit ExitOf(const absl::Status& status);

// Ends the process without exit handlers: MPI's may wait for somebody, and threads that gRPC leaves
// behind crash on what is destroyed there.
[[noreturn]] void LeaveAtOnce(WorkerExit code);

// From now on, for the whole process; `board` outlives it. Handlers that were there before (of a
// sanitizer, say) follow.
void InstallLastWords(const ProgressBoard& board, int rank);

}  // namespace espalier
