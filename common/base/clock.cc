#include "common/base/clock.h"

#include <algorithm>
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

absl::Time SteadyTime::Now() {
  const absl::Duration monotonic = clock_.Monotonic();
  const absl::Duration passed = std::max(absl::ZeroDuration(), monotonic - monotonic_);
  monotonic_ = monotonic;
  now_ += passed;
  const absl::Duration error = clock_.Now() - now_;
  now_ += std::clamp(error, -passed / 10, passed / 10);
  return now_;
}

}  // namespace espalier
