// TimeAccounts: books every second of the compute thread to exactly one account, so that the sum is
// the wall time. Used by worker/train. One thread.
#pragma once

#include <array>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

enum class TimeAccount {
  kCompute,       // forward and backward passes
  kExchangeWait,  // waiting for other ranks
  kDataWait,      // waiting for samples
  kUpdate,        // optimizer; on rank 0 the norm, for which the others wait
  kCheckpoint,
  kEvaluate,
  kPaused,
  kRollout,  // sampling completions, with the wait for other ranks' last ones
  kReward,   // having them judged
};
inline constexpr int kTimeAccounts = 9;

class TimeAccounts {
 public:
  explicit TimeAccounts(Clock& clock) : clock_(clock), last_(clock.Monotonic()) {}

  // Everything since the last call goes to `account`.
  void Book(TimeAccount account) {
    const absl::Duration now = clock_.Monotonic();
    spent_[static_cast<int>(account)] += now - last_;
    last_ = now;
  }
  double Seconds(TimeAccount account) const {
    return absl::ToDoubleSeconds(spent_[static_cast<int>(account)]);
  }
  // Of the four accounts of a step itself.
  double StepSeconds() const {
    return Seconds(TimeAccount::kCompute) + Seconds(TimeAccount::kExchangeWait) +
           Seconds(TimeAccount::kDataWait) + Seconds(TimeAccount::kUpdate);
  }
  void Clear() { spent_ = {}; }

 private:
  Clock& clock_;
  absl::Duration last_;
  std::array<absl::Duration, kTimeAccounts> spent_{};
};

}  // namespace espalier
