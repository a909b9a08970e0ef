// A clock for the tests of the services. Used by agent_service_test.cc and attach_service_test.cc.
#pragma once

#include <atomic>

#include "common/base/clock.h"

namespace espalier {

// Stands still until it is set forward; any thread.
class SetClock : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + Monotonic(); }
  absl::Duration Monotonic() override { return absl::Seconds(seconds.load()); }
  void Sleep(absl::Duration) override {}
  std::atomic<int> seconds = 1000;
};

}  // namespace espalier
