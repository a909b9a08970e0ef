// Exit codes of espalier-worker, one per kind of end (README.md has the table). Used by every verb.
#pragma once

#include "absl/status/status.h"

namespace espalier {

enum class WorkerExit : int {
  kDone = 0,      // completed, or stopped as a directive said
  kFailed = 1,    // cannot succeed by trying again, but for the reasons of kBadInput
  kBadInput = 2,  // command line, job file, data or model folder
  kLost = 3,      // a peer was lost or a wait ran out: a new generation may mend it
  kFenced = 4,    // espalierd has started a newer generation
};

WorkerExit ExitOf(const absl::Status& status);

}  // namespace espalier
