#include "coordinator/core/job_state.h"

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

}  // namespace espalier
