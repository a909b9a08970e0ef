// The folders that a job names, as far as espalierd can judge them. Where it may write: workers run
// as the user who runs espalierd, so a job that could name any folder could overwrite what is that
// user's. And whether its data is there. Used by operator_service.cc. Any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/view.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// INVALID_ARGUMENT unless each folder that the job names to be written lies in one of `allowed`
// (the state folder and writable_folders of the cluster file), after links and ".." are resolved as
// they are on this machine. A hand-started job is not checked: it runs as whoever starts it.
absl::Status CheckWritableFolders(const v1::JobSpec& spec, const std::vector<std::string>& allowed);

// Whether each node, of the cluster file and joined, is this machine now: both come and go while
// espalierd runs.
std::map<std::string, bool> NodesHere(const View& view);

// INVALID_ARGUMENT when the job is bound to run a rank on this machine and no prepared data can be
// read in data.path here. `is_here` tells of each node of the cluster whether it is this machine;
// what another one has shows when the job starts there. A hand-started job is not checked.
absl::Status CheckDataFolder(const v1::JobSpec& spec, const std::map<std::string, bool>& is_here);

}  // namespace espalier
