#include "common/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace espalier {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Monotonic() override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

Clock& RealClock() {
  static SystemClock& clock = *new SystemClock;
  return clock;
}

}  // namespace espalier
