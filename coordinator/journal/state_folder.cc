#include "coordinator/journal/state_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// Something in the folder that no espalierd left there; empty when there is none. The lock comes
// before the journal, so an espalierd that was ended in between leaves it alone.
absl::StatusOr<std::string> Foreign(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(path));
  const auto is_there = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (names.empty() || is_there("journal.sqlite")) return "";
  if (names.size() == 1 && is_there("lock")) return "";
  return names.front();
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
    return absl::FailedPreconditionError(absl::StrFormat(
        "the state folder %s is one that others may write in, or shared like /tmp (mode %o), and "
        "was left as it is; give espalierd a folder of its own, for example %s/espalier, or, if "
        "this one is meant for it alone, run chmod 700 on it",
        path, entry.st_mode & kPermissions, path));
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

}  // namespace espalier
