// SteadyTime: wall-clock time for the core that never jumps. It follows the monotonic clock, so
// that a corrected clock or a machine that slept does not make every worker look silent, and drifts
// towards the wall clock by at most a tenth of the time that passes. Not thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

class SteadyTime {
 public:
  explicit SteadyTime(Clock& clock)
      : clock_(clock), monotonic_(clock.Monotonic()), now_(clock.Now()) {}

  absl::Time Now() {
    const absl::Duration monotonic = clock_.Monotonic();
    const absl::Duration passed = std::max(absl::ZeroDuration(), monotonic - monotonic_);
    monotonic_ = monotonic;
    now_ += passed;
    const absl::Duration error = clock_.Now() - now_;
    now_ += std::clamp(error, -passed / 10, passed / 10);
    return now_;
  }

 private:
  Clock& clock_;
  absl::Duration monotonic_;
  absl::Time now_;
};

}  // namespace espalier
