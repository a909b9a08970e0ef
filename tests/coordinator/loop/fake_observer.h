// An observer of the loop that keeps what it was told. Used by loop_world.h.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/state.h"
#include "coordinator/loop/outlets.h"

namespace espalier {

// Keeps what was published last, and names what it was told in between.
class FakeObserver : public LoopObserver {
 public:
  void Heard(const WorkerId& worker, const v1::AttachRequest& message, absl::Duration) override {
    told.push_back(absl::StrCat("heard ", worker.rank.value(), " ", message.body_case()));
  }
  void Attached(const WorkerId& worker, absl::Duration) override {
    told.push_back(absl::StrCat("attached ", worker.rank.value()));
  }
  void Moved(const JobId&, JobState, JobState to, const Event&, absl::Duration) override {
    told.push_back(absl::StrCat("moved to ", JobStateName(to)));
  }
  void Publish(const Publication& publication) override {
    state = publication.state;
    stats = publication.stats;
    ++publications;
    for (const JobId& job : publication.changed) told.push_back("changed " + job.text());
  }
  void Stalled(const LoopStats& now) override { stats = now; }

  ClusterState state;
  LoopStats stats;
  int publications = 0;
  std::vector<std::string> told;
};

}  // namespace espalier
