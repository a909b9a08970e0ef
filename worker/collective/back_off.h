// BackOff: the pauses of a thread that polls. None while something moves, then longer and longer,
// so that a waiting rank leaves the processor to those that compute. Used by
// communication_thread.cc. One thread.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace espalier {

class BackOff {
 public:
  // How a poll ended.
  enum class Poll {
    kCompleted,  // a message was completed
    kMoved,      // none, but the poll took long enough to have carried bytes
    kIdle,
  };
  // How long to pause before the next poll.
  absl::Duration After(Poll poll) {
    switch (poll) {
      case Poll::kCompleted:
        idle_polls_ = 0;
        break;
      case Poll::kMoved:
        idle_polls_ = std::min(idle_polls_, kBusyPolls / 2);
        break;
      case Poll::kIdle:
        ++idle_polls_;
        break;
    }
    if (idle_polls_ < kBusyPolls) return absl::ZeroDuration();
    const int doublings = std::min((idle_polls_ - kBusyPolls) / kPollsPerDoubling, kDoublingsMax);
    return absl::Microseconds(16 << doublings);
  }

 private:
  static constexpr int kBusyPolls = 100;
  static constexpr int kPollsPerDoubling = 20;
  static constexpr int kDoublingsMax = 6;  // about 1 ms
  int idle_polls_ = 0;
};

}  // namespace espalier
