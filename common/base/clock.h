// Clock: the only source of time. Passed to whatever needs one, so that tests and the simulator
// decide what time it is; the coordinator's core never sees a Clock, only `now` values, which the
// daemon takes from a SteadyTime.
// Thread-safe; a SteadyTime belongs to one thread.
#pragma once

#include "absl/time/time.h"

namespace espalier {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall clock, for people and records only.
  virtual absl::Time Now() = 0;
  // Time since an arbitrary start; never goes back. For deadlines and durations.
  virtual absl::Duration Monotonic() = 0;
  virtual void Sleep(absl::Duration duration) = 0;
};

// The machine's clock; lives as long as the process.
Clock& RealClock();

// Wall-clock time that never jumps. It follows the monotonic clock, so that a corrected clock or a
// machine that slept does not make every worker look silent, and drifts towards the wall clock by
// at most a tenth of the time that passes.
class SteadyTime {
 public:
  // `clock` outlives it.
  explicit SteadyTime(Clock& clock)
      : clock_(clock), monotonic_(clock.Monotonic()), now_(clock.Now()) {}
  absl::Time Now();

 private:
  Clock& clock_;
  absl::Duration monotonic_;
  absl::Time now_;
};

}  // namespace espalier
