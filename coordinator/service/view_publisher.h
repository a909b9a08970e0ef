// ViewPublisher: keeps the board's view up to date with the loop; what it remembers beside the
// core's state are the side notes. Used by daemon.cc; the two functions are those it is made of.
// Thread rule: as LoopObserver; the functions are pure.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/state.h"
#include "coordinator/loop/outlets.h"
#include "coordinator/service/side_notes.h"
#include "coordinator/service/view.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct ViewMoment {
  // The core's time and the monotonic time at the same instant.
  absl::Time now;
  absl::Duration monotonic;
};

std::shared_ptr<const JobView> MakeJobView(const Job& job, const JobNotes& notes,
                                           const std::string& state_dir, const ViewMoment& moment);

std::shared_ptr<const v1::NodeStatus> MakeNodeView(const ClusterState& state, const Node& node,
                                                   const v1::NodeSpec& spec);

class ViewPublisher : public LoopObserver {
 public:
  // `board` outlives the publisher.
  ViewPublisher(ViewBoard& board, v1::ClusterSpec cluster, std::string state_dir)
      : board_(board), cluster_(std::move(cluster)), state_dir_(std::move(state_dir)) {}

  void Heard(const WorkerId& worker, const v1::AttachRequest& message, absl::Duration now) override;
  void Attached(const WorkerId& worker, absl::Duration now) override;
  void Moved(const JobId& job, JobState from, JobState to, const Event& event,
             absl::Duration now) override;
  void Publish(const Publication& publication) override;
  void Stalled(const LoopStats& stats) override;

 private:
  void PublishNodes(const ClusterState& state);
  const v1::NodeSpec& SpecOf(const Node& node, size_t index) const;

  ViewBoard& board_;
  const v1::ClusterSpec cluster_;
  const std::string state_dir_;
  SideNotes notes_;
  View view_;
  // Of the nodes as they were shown last.
  std::vector<int64_t> node_revisions_;
};

}  // namespace espalier
