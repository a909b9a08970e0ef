// Last words: a worker that dies of a signal or of std::terminate leaves one line that names its
// rank, the step and the phase it was in, since no status can be returned any more. Used by run.cc.
// Any thread.
#pragma once

#include "worker/control/progress.h"

namespace espalier {

// From now on, for the whole process; `board` outlives it. Handlers that were there before (of a
// sanitizer, say) follow.
void InstallLastWords(const ProgressBoard& board, int rank);

}  // namespace espalier
