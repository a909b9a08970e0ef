// Hello: who may join, and who is fenced. Used by Advance. One thread.
#pragma once

#include "coordinator/core/context.h"

namespace espalier {

void OnAttached(Context& context, const WorkerAttached& hello);

// A hand-started worker: finds or makes its job, and starts a generation with the first rank of a
// new mpirun. Null when it was refused.
Job* JobOfHandStarted(Context& context, const WorkerAttached& hello);

// FAILED_PRECONDITION upon which the worker exits.
void Fence(Context& context, LinkId link, const std::string& why);

}  // namespace espalier
