#include "coordinator/core/interruption.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {

absl::string_view Interruption::Name(Phase phase) {
  constexpr absl::string_view kNames[kPhases] = {"detect", "stop",  "wait", "launch",
                                                 "attach", "state", "step"};
  return kNames[phase];
}

void Interruption::Begin(Phase phase, absl::Time now) {
  if (!phase_) return;
  seconds_[*phase_] += absl::ToDoubleSeconds(std::max(now - since_, absl::ZeroDuration()));
  phase_ = phase;
  since_ = now;
}

void Interruption::Attached(Ranks which, absl::Time now) {
  if (which == Ranks::kAll) return Begin(kState, now);
  if (phase_ == kLaunch) Begin(kAttach, now);
}

void Interruption::Entered(JobState state, absl::Time progressed_at, absl::Time now) {
  switch (state) {
    case JobState::kRecovering:
    case JobState::kRegrouping:
      if (phase_) return Begin(kStop, now);
      seconds_ = {};
      phase_ = kDetect;
      since_ = state == JobState::kRecovering ? progressed_at : now;
      return Begin(kStop, now);
    case JobState::kLaunching:
      return Begin(kLaunch, now);
    case JobState::kRunning:
      return Begin(kStep, now);
    case JobState::kQueued:
      return Begin(kWait, now);
    case JobState::kPausing:
    case JobState::kPausedSoft:
    case JobState::kPausedHard:
    case JobState::kCancelling:
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      phase_.reset();
  }
}

std::optional<std::string> Interruption::Committed(absl::Time now) {
  // Of a planned change: the step in hand, which is done before it.
  if (phase_ == kStop && seconds_[kDetect] == 0) since_ = now;
  if (phase_ != kStep) return std::nullopt;
  Begin(kStep, now);
  phase_.reset();
  ++count_;
  std::string parts;
  for (size_t i = 0; i < kPhases; ++i) {
    totals_[i] += seconds_[i];
    absl::StrAppend(&parts, i == 0 ? "" : ", ", Name(static_cast<Phase>(i)),
                    absl::StrFormat(" %.2f s", seconds_[i]));
  }
  const double all = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  return absl::StrCat(absl::StrFormat("stood still for %.2f s: ", all), parts);
}

}  // namespace espalier
