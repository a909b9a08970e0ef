#include "coordinator/core/job_state.h"

#include <algorithm>

namespace espalier {

absl::string_view JobStateName(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kLaunching:
      return "LAUNCHING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kPausing:
      return "PAUSING";
    case JobState::kPausedSoft:
      return "PAUSED_SOFT";
    case JobState::kPausedHard:
      return "PAUSED_HARD";
    case JobState::kRegrouping:
      return "REGROUPING";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kCancelling:
      return "CANCELLING";
    case JobState::kCompleted:
      return "COMPLETED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "UNKNOWN";
}

bool IsFinal(JobState state) {
  return state == JobState::kCompleted || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

namespace {

using S = JobState;

// An end that was decided in any state is entered from it when the processes are gone.
constexpr absl::string_view kComplete = "last step committed, processes gone";
constexpr absl::string_view kFail = "failure of the job's own, processes gone";

constexpr Transition kTransitions[] = {
    {S::kQueued, "enough nodes free, or a hand-started mpirun attaches", S::kLaunching},
    {S::kQueued, "pause (either kind: nothing runs)", S::kPausedHard},
    {S::kQueued, "cancel", S::kCancelled},
    {S::kLaunching, "every rank ready", S::kRunning},
    {S::kLaunching, "pause --hard; every rank ready after a soft pause was asked for", S::kPausing},
    {S::kLaunching, "launch failed or timed out, or a rank lost", S::kRecovering},
    {S::kLaunching, "cancel", S::kCancelling},
    {S::kLaunching, kComplete, S::kCompleted},
    {S::kLaunching, kFail, S::kFailed},
    {S::kRunning, "pause; preempted by a higher priority", S::kPausing},
    {S::kRunning,
     "a node of it is drained, unwell or no longer in the cluster file; one more can be had",
     S::kRegrouping},
    {S::kRunning, "rank lost, stuck, or failed by itself", S::kRecovering},
    {S::kRunning, "cancel", S::kCancelling},
    {S::kRunning, kComplete, S::kCompleted},
    {S::kRunning, kFail, S::kFailed},
    {S::kPausing, "resume of a soft pause", S::kRunning},
    {S::kPausing, "soft: every rank obeyed", S::kPausedSoft},
    {S::kPausing, "hard: stopped", S::kPausedHard},
    {S::kPausing, "stopped, and resumed meanwhile or preempted", S::kQueued},
    {S::kPausing, "rank lost; goes on as asked: soft in a new generation, hard at once",
     S::kRecovering},
    {S::kPausing, "cancel", S::kCancelling},
    {S::kPausing, kComplete, S::kCompleted},
    {S::kPausing, kFail, S::kFailed},
    {S::kPausedSoft, "resume", S::kRunning},
    {S::kPausedSoft, "pause --hard; preempted; drained, or unwell; rank lost", S::kPausing},
    {S::kPausedSoft, "cancel", S::kCancelling},
    {S::kPausedSoft, kComplete, S::kCompleted},
    {S::kPausedSoft, kFail, S::kFailed},
    {S::kPausedHard, "resume", S::kQueued},
    {S::kPausedHard, "cancel", S::kCancelled},
    {S::kRegrouping, "its checkpoint could not be written, and memory will not do", S::kRunning},
    {S::kRegrouping, "stopped", S::kLaunching},
    {S::kRegrouping, "stopped, and too few nodes are left", S::kQueued},
    {S::kRegrouping, "stopped, and pause --hard was asked for meanwhile", S::kPausedHard},
    {S::kRegrouping, "rank lost", S::kRecovering},
    {S::kRegrouping, "cancel", S::kCancelling},
    {S::kRegrouping, "cancel, nothing of it runs", S::kCancelled},
    {S::kRegrouping, kComplete, S::kCompleted},
    {S::kRegrouping, kFail, S::kFailed},
    {S::kRecovering, "processes gone and back-off over", S::kLaunching},
    {S::kRecovering, "processes gone, and too few nodes are free, or preempted, or hand-started",
     S::kQueued},
    {S::kRecovering, "processes gone, and pause --hard was asked for", S::kPausedHard},
    {S::kRecovering, "cancel", S::kCancelling},
    {S::kRecovering, "cancel, nothing of it runs", S::kCancelled},
    {S::kRecovering, kComplete, S::kCompleted},
    {S::kRecovering, "no restart left; failure of the job's own; processes gone", S::kFailed},
    {S::kCancelling, "processes gone", S::kCancelled},
    {S::kCancelling, kComplete, S::kCompleted},
};

}  // namespace

absl::Span<const Transition> Transitions() { return kTransitions; }

bool TransitionAllowed(JobState from, JobState to) {
  return from == to || std::any_of(std::begin(kTransitions), std::end(kTransitions),
                                   [&](const Transition& transition) {
                                     return transition.from == from && transition.to == to;
                                   });
}

}  // namespace espalier
