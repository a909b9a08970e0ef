// The first event of a coordinator's life: takes up what the journal holds. Used by Advance. One
// thread.
#pragma once

#include "coordinator/core/context.h"

namespace espalier {

void OnStarted(Context& context, const CoordinatorStarted& start);

}  // namespace espalier
