// Where jobs may write: workers run as the user who runs espalierd, so a job that could name any
// folder could overwrite what is that user's. Used by operator_service.cc. Any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// INVALID_ARGUMENT unless each folder that the job names to be written lies in one of `allowed`
// (the state folder and writable_folders of the cluster file), after links and ".." are resolved as
// they are on this machine. A hand-started job is not checked: it runs as whoever starts it.
absl::Status CheckWritableFolders(const v1::JobSpec& spec, const std::vector<std::string>& allowed);

}  // namespace espalier
