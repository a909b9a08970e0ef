// The state folder, which holds everything that espalierd keeps: for its owner only, and for one
// espalierd at a time. Used by coordinator/service/daemon.cc. Thread rule: one thread.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

// Makes the folder, or sees to it that the one there is espalierd's and closed to others. Nothing
// is changed otherwise: FAILED_PRECONDITION for a folder that others may write or that holds other
// things than an espalierd's; PERMISSION_DENIED for one of another user.
absl::Status MakeStateFolder(const std::string& path);

// Held as long as the object lives, or the process.
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
