// Clock: the only source of time. Passed to whatever needs one, so that tests and the simulator
// decide what time it is; the coordinator's core never sees a Clock, only `now` values, which the
// daemon takes from a SteadyTime. Used by common/, coordinator/ and worker/. Thread-safe but for
// SteadyTime, which belongs to one thread.
#pragma once

#include <algorithm>
#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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

// Wall-clock time that follows the monotonic clock, so that a corrected clock does not make every
// worker look silent, and drifts towards the wall clock by at most a tenth of the time that passes.
// macOS counts a machine's sleep (Linux does not): the core excuses silence after its own (Step).
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

// Bounded waits that follow the monotonic clock. Those of absl::CondVar follow the wall clock in
// older releases of Abseil, where a clock that is set back makes a wait of a moment one of hours.
class SteadyCondition {
 public:
  void WakeAll() { condition_.notify_all(); }
  // Gives the mutex up until `done()` holds, at most for `timeout` (a day, if that is longer). It
  // is asked at once and after each WakeAll, with the mutex held. False: the time is over.
  template <typename Done>
  bool Wait(absl::Mutex& mutex, absl::Duration timeout, const Done& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Held held{mutex};
    const absl::Duration bounded = std::min(timeout, absl::Hours(24));
    return condition_.wait_for(held, absl::ToChronoNanoseconds(bounded), done);
  }

 private:
  // What the standard library calls a lock.
  struct Held {
    absl::Mutex& mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
  };
  std::condition_variable_any condition_;
};

}  // namespace espalier
