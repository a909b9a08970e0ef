// The states of a job, what else is decided about it, as the journal and the protocol number them,
// and the job machine as one table: every transition that there is. Transaction::Enter crashes on
// any other; README.md shows the table, and the simulator sees that a job's history follows it.
// Used by job_record.h, transaction.cc and tests. Plain values and pure functions: any thread.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

// The job machine; README.md has the diagram. The numbers equal those of operator.proto.
enum class JobState {
  // Waits for nodes, or for a hand-started mpirun.
  kQueued = 1,
  // A generation is being started.
  kLaunching = 2,
  // Steps are being committed.
  kRunning = 3,
  // A pause was sent; the step is being finished (hard: a checkpoint too).
  kPausing = 4,
  // Processes wait in memory, without using the processor.
  kPausedSoft = 5,
  // Nothing runs, nodes are free.
  kPausedHard = 6,
  // A planned change of nodes at the next boundary.
  kRegrouping = 7,
  // The generation is being ended after a fault, or the wait before the next one.
  kRecovering = 8,
  // Asked to stop.
  kCancelling = 9,
  // Final, like the two below.
  kCompleted = 10,
  kFailed = 11,
  kCancelled = 12,
};

// What the operator asked for last; the machine moves towards it from every state.
enum class DesiredState {
  kRun,
  kPauseSoft,
  kPauseHard,
  kCancel,
};

// What exists of the newest generation outside the coordinator.
enum class Processes {
  // None: never started, or known to be gone.
  kNone,
  // Launched (or about to be, right after the journal's commit), or attached by hand.
  kRunning,
  // Kill was asked for; not known to be gone yet.
  kEnding,
};

// How the job will end once its processes are gone.
enum class Verdict {
  kOpen,
  kComplete,
  kFail,
};

// As in README.md: "PAUSED_SOFT".
absl::string_view JobStateName(JobState state);
bool IsFinal(JobState state);

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
