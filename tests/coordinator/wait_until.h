// Waits for a condition with a bound, for tests against real processes and sockets. The bound is
// far beyond what any machine needs: it ends a broken test, it measures nothing. Used by
// tests/common/platform, tests/coordinator/agent, tests/coordinator/launcher and
// tests/coordinator/service.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

inline bool WaitUntil(const std::function<bool()>& condition,
                      absl::Duration bound = absl::Seconds(60)) {
  const absl::Duration deadline = RealClock().Monotonic() + bound;
  while (!condition()) {
    if (RealClock().Monotonic() > deadline) return false;
    RealClock().Sleep(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace espalier
