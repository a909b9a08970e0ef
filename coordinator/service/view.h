// View: what the rest of the daemon may see of the loop's state. A new immutable one is published
// after each batch of events; readers keep theirs as long as they like and block nobody. Used by
// coordinator/service. Thread rule: views are immutable; ViewBoard may be used from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/interruption.h"
#include "coordinator/loop/outlets.h"
#include "coordinator/service/tally.h"
#include "espalier/v1/operator.pb.h"

namespace espalier {

struct JobView {
  // Complete but for what depends on the time of reading: see StatusAt.
  v1::JobStatus status;
  std::shared_ptr<const v1::JobSpec> spec;
  // When a progress counter of each rank last grew, monotonic.
  std::vector<absl::Duration> progress_at;
  std::optional<absl::Duration> checkpoint_at;
  std::map<std::string, int64_t> restarts_by_cause;
  Interruption interruption;
  int64_t checkpoint_failures = 0;
  // By rank, and the node that the rank ran on last.
  std::vector<WorkerTally> tallies;
  std::vector<std::string> nodes;
  // Monotonic; absent while the job is not final.
  std::optional<absl::Duration> final_at;
  // Grows with every change of this job.
  int64_t revision = 0;

  bool is_final() const { return final_at.has_value(); }
  v1::JobStatus StatusAt(absl::Duration now) const;
};

struct View {
  std::map<JobId, std::shared_ptr<const JobView>> jobs;
  // In the order of the cluster file; then those that have joined.
  std::vector<std::shared_ptr<const v1::NodeStatus>> nodes;
  // Serial numbers of certificates that are refused.
  std::shared_ptr<const std::set<std::string>> revoked = std::make_shared<std::set<std::string>>();
  // espalierd's own.
  v1::NodeVersions versions;
  LoopStats stats;

  // By id, by unique name, or by unique prefix of an id. NOT_FOUND and INVALID_ARGUMENT (several
  // match) name what there is.
  absl::StatusOr<JobId> Resolve(absl::string_view text) const;
};

class ViewBoard {
 public:
  ViewBoard() : view_(std::make_shared<View>()) {}
  void Publish(std::shared_ptr<const View> view);
  std::shared_ptr<const View> Current() const;

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const View> view_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
