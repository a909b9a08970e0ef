// Retention: how long jobs that have ended are remembered, so that years of runs neither fill the
// journal nor slow what looks at all jobs. Their checkpoints are the user's and stay. Used by
// advance.cc. One thread.
#pragma once

#include <cstddef>

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace espalier {

struct RetentionPolicy {
  // The newest are kept whatever their age.
  size_t always = 50;
  // Of the others, those that ended so recently, and no more than `most` in all.
  absl::Duration age = absl::Hours(24 * 90);
  size_t most = 1000;
};

// Forgets final jobs beyond the policy, oldest first: removes them from the state and asks for the
// same of the journal. Looks at most once an hour.
void ForgetOldJobs(Context& context, const RetentionPolicy& policy = {});

}  // namespace espalier
