#include "coordinator/journal/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

std::string HolderOf(int fd) {
  char text[32] = {};
  const ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
  return size > 0 ? absl::StrCat(" (process ", std::string(text, static_cast<size_t>(size)), ")")
                  : "";
}

}  // namespace

absl::StatusOr<StateLock> StateLock::Take(const std::string& state_dir, Clock& clock,
                                          absl::Duration patience) {
  const std::string path = state_dir + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  StateLock lock(fd);
  const absl::Duration deadline = clock.Monotonic() + patience;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::InternalError(absl::StrCat("cannot lock ", path, ": ", std::strerror(errno)));
    }
    if (clock.Monotonic() > deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("another espalierd", HolderOf(fd), " uses the state folder ", state_dir,
                       "; stop it, or give this one another --state-dir"));
    }
    clock.Sleep(absl::Milliseconds(20));
  }
  const std::string pid = absl::StrCat(getpid());
  const bool written = ftruncate(fd, 0) == 0 &&
                       pwrite(fd, pid.data(), pid.size(), 0) == static_cast<ssize_t>(pid.size());
  if (!written) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return lock;
}

StateLock::~StateLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace espalier
