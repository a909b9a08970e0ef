// Timeline: virtual time. Things happen in order of their time, those of equal time in the order in
// which they were planned. Used by scene.h. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace espalier::sim {

class Timeline {
 public:
  using Action = std::function<void()>;

  absl::Time now() const { return now_; }
  void At(absl::Time time, Action action) {
    planned_.push(Planned{std::max(time, now_), next_++, std::move(action)});
  }
  void After(absl::Duration delay, Action action) { At(now_ + delay, std::move(action)); }
  // Does what comes next; false when nothing is planned.
  bool RunNext() {
    if (planned_.empty()) return false;
    Planned next = planned_.top();
    planned_.pop();
    now_ = next.time;
    next.action();
    return true;
  }

 private:
  struct Planned {
    absl::Time time;
    int64_t number;
    Action action;
    friend bool operator<(const Planned& a, const Planned& b) {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };
  absl::Time now_ = absl::FromUnixSeconds(1'000'000'000);
  int64_t next_ = 0;
  std::priority_queue<Planned> planned_;
};

}  // namespace espalier::sim
