// Clock: the only source of time. Passed to whatever needs one, so that tests and the simulator
// decide what time it is; the coordinator's core never sees a Clock, only `now` values.
// Thread-safe.
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

}  // namespace espalier
