// The state folder: everything that espalierd keeps, for its owner only. Used by
// coordinator/service/daemon.cc. Thread rule: one thread.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// Makes the folder, or sees to it that the one there is espalierd's and closed to others. Nothing
// is changed otherwise: FAILED_PRECONDITION for a folder that others may write or that holds other
// things than an espalierd's; PERMISSION_DENIED for one of another user.
absl::Status MakeStateFolder(const std::string& path);

}  // namespace espalier
