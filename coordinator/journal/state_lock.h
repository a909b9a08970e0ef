// StateLock: one espalierd per state folder. Held as long as the object lives, or the process. Used
// by coordinator/service/daemon.cc. Thread rule: one thread.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

class StateLock {
 public:
  // Waits up to `patience` for another espalierd that is just ending. FAILED_PRECONDITION: one has
  // the folder, and which.
  static absl::StatusOr<StateLock> Take(const std::string& state_dir, Clock& clock,
                                        absl::Duration patience = absl::Seconds(2));
  StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace espalier
