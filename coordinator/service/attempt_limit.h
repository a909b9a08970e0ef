// AttemptLimit: how often a peer may fail before it has to wait: a few times at once, then once in
// a while. Used by join_service.h. Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace espalier {

class AttemptLimit {
 public:
  // At once, and how long one failure counts.
  static constexpr int kFailures = 5;
  static constexpr absl::Duration kPerFailure = absl::Seconds(12);
  // Beyond, peers that nothing is known of are treated as one.
  static constexpr size_t kPeers = 1024;

  // How long the peer has to wait before its next attempt; zero: it may try. `now` is monotonic.
  absl::Duration WaitOf(const std::string& peer, absl::Duration now) const {
    const absl::MutexLock lock(&mutex_);
    const auto found = until_.find(Key(peer));
    if (found == until_.end()) return absl::ZeroDuration();
    return std::max(absl::ZeroDuration(), found->second - now - (kFailures - 1) * kPerFailure);
  }

  void Failed(const std::string& peer, absl::Duration now) {
    const absl::MutexLock lock(&mutex_);
    std::erase_if(until_, [now](const auto& entry) { return entry.second <= now; });
    absl::Duration& until = until_[Key(peer)];
    until = std::max(until, now) + kPerFailure;
  }

 private:
  std::string Key(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return until_.size() < kPeers || until_.count(peer) > 0 ? peer : std::string();
  }

  mutable absl::Mutex mutex_;
  // When the last of its failures counts no more.
  std::map<std::string, absl::Duration> until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
