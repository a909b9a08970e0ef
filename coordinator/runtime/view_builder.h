// Makes the published view of a job and of the nodes from the core's state. Used by the loop.
// Thread rule: pure functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/state.h"
#include "coordinator/runtime/side_notes.h"
#include "coordinator/runtime/view.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct ViewMoment {
  // The core's time and the monotonic time at the same instant.
  absl::Time now;
  absl::Duration monotonic;
};

// Where the checkpoints of a job go: its spec's folder, or STATE_DIR/jobs/ID/checkpoints.
std::string CheckpointDirectory(const JobRecord& record, const std::string& state_dir);

std::shared_ptr<const JobView> MakeJobView(const Job& job, const JobNotes& notes,
                                           const std::string& state_dir, const ViewMoment& moment);

std::vector<v1::NodeStatus> MakeNodeViews(const ClusterState& state,
                                          const v1::ClusterSpec& cluster);

}  // namespace espalier
