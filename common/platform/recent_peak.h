// RecentPeak: the highest memory since a restart, where the system keeps only the highest ever
// (macOS): that one if it came since, else the highest that was seen at a look. Used by
// platform_darwin.cc, and tested everywhere. Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace espalier {

class RecentPeak {
 public:
  // A look: `now` and the highest ever, in bytes. Returns the highest since Restart.
  int64_t Look(int64_t now, int64_t highest_ever) {
    int64_t seen = seen_.load();
    while (now > seen && !seen_.compare_exchange_weak(seen, now)) {
    }
    return highest_ever > before_ ? highest_ever : std::max(now, seen);
  }
  void Restart(int64_t now, int64_t highest_ever) {
    before_ = highest_ever;
    seen_ = now;
  }

 private:
  std::atomic<int64_t> before_{0};
  std::atomic<int64_t> seen_{0};
};

}  // namespace espalier
