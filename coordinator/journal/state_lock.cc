#include "coordinator/journal/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr mode_t kOwnerOnly = 0700;
constexpr mode_t kPermissions = 07777;
// By these a folder is told from one that others use too, such as /tmp.
constexpr mode_t kShared = S_IWGRP | S_IWOTH | S_ISVTX;

absl::Status Close(const std::string& path) {
  if (chmod(path.c_str(), kOwnerOnly) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("cannot close the state folder ", path, " to others: ", std::strerror(errno)));
}

// What espalierd and its parts leave in the folder. With "journal.sqlite" begin the journal's own
// files, and what a damaged one is called that was moved aside.
constexpr absl::string_view kOurs[] = {"address", "identity.pem",   "jobs",          "lock",
                                       "token",   "mpirun-version", "espalierd.sock"};

bool IsOurs(const std::string& name) {
  return absl::StartsWith(name, "journal.sqlite") ||
         std::find(std::begin(kOurs), std::end(kOurs), name) != std::end(kOurs);
}

// Something in the folder that no espalierd left there; empty when there is none, or when an
// espalierd has served from here: then other things lie there because somebody put them beside it,
// such as the journal under another name.
absl::StatusOr<std::string> Foreign(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(path));
  const auto is_there = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_there("journal.sqlite") || (is_there("lock") && is_there("token"))) return "";
  const auto foreign = std::find_if_not(names.begin(), names.end(), IsOurs);
  return foreign == names.end() ? "" : *foreign;
}

std::string HolderOf(int fd) {
  char text[32] = {};
  const ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
  return size > 0 ? absl::StrCat(" (process ", std::string(text, static_cast<size_t>(size)), ")")
                  : "";
}

}  // namespace

absl::Status MakeStateFolder(const std::string& path) {
  struct stat entry;
  if (stat(path.c_str(), &entry) != 0) {
    RETURN_IF_ERROR(MakeDurableDirectory(PosixFileSystem(), path));
    return Close(path);
  }
  if (!S_ISDIR(entry.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("the state folder ", path, " is no folder"));
  }
  if (entry.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("the state folder ", path, " belongs to uid ",
                                                    entry.st_uid, ", and espalierd runs as uid ",
                                                    geteuid(), "; give it a folder of its own"));
  }
  if ((entry.st_mode & kShared) != 0) {
    const bool group_only = (entry.st_mode & kShared) == S_IWGRP;
    return absl::FailedPreconditionError(absl::StrFormat(
        "the state folder %s is one that others may write in (mode %o), and was left as it is; "
        "give espalierd a folder of its own, for example %s/espalier%s",
        path, entry.st_mode & kPermissions, path,
        group_only ? ", or, if this one is meant for it alone, run chmod 700 on it" : ""));
  }
  ASSIGN_OR_RETURN(const std::string foreign, Foreign(path));
  if (!foreign.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state folder ", path, " holds other things (", foreign,
        ") and no journal of an espalierd, and was left as it is; give espalierd a folder of its "
        "own, for example ",
        path, "/espalier"));
  }
  return (entry.st_mode & kPermissions) == kOwnerOnly ? absl::OkStatus() : Close(path);
}

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
