// The job machine as one table: every transition that there is. Context::Enter crashes on any
// other; README.md shows the table, and the simulator sees that a job's history follows it. Used by
// context.cc and by tests. Pure: any thread.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/job_state.h"

namespace espalier {

struct Transition {
  JobState from;
  // What it happens on, for people.
  absl::string_view on;
  JobState to;
};

// In the order of the states.
absl::Span<const Transition> Transitions();

// True also when nothing changes: a state may be entered again for another reason.
bool TransitionAllowed(JobState from, JobState to);

}  // namespace espalier
