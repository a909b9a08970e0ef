// RefusalLog: what espalierd logs of callers that it refuses. Who is refused mostly tries again at
// once, for days: a refusal is said when it comes first, and then once a minute how often it came
// again. Used by daemon.cc. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

class RefusalLog {
 public:
  // Of one refusal, between two lines.
  static constexpr absl::Duration kInterval = absl::Minutes(1);
  // More different ones are not told apart: callers choose what they are refused for.
  static constexpr size_t kRefusalsMax = 256;

  // `say` gets each line, under a lock, and must not call back. `clock` outlives it.
  RefusalLog(std::function<void(absl::string_view line)> say, Clock& clock)
      : say_(std::move(say)), clock_(clock) {}

  void Add(const std::string& refusal) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Said {
    absl::Duration at;
    // How often it came since.
    int64_t unsaid = 0;
  };
  // Forgets the one that was said longest ago.
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(absl::string_view line)> say_;
  Clock& clock_;
  absl::Mutex mutex_;
  std::map<std::string, Said> said_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
