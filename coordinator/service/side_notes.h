// SideNotes: what people want to see of a job that decides nothing and is not journaled: the last
// full report of each rank, running totals, causes of restarts. Kept by the loop beside the core's
// state. Belongs to the loop's thread. Used by view_publisher.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/event.h"
#include "coordinator/service/tally.h"

namespace espalier {

struct JobNotes {
  std::map<std::string, int64_t> restarts_by_cause;
  // Of the task, those that are known by name: of the newest step and the newest evaluation.
  google::protobuf::RepeatedPtrField<v1::TaskFigure> figures, evaluation_figures;
  // By rank; as many as the widest generation had.
  std::vector<WorkerTally> tallies;
  // By rank, of the newest generation.
  std::vector<std::optional<v1::StepReport>> last_steps;
  std::optional<absl::Duration> final_at;
  int64_t revision = 0;
};

// What kind of event made a job recover, as a label: "no_progress" (a deadline passed),
// "worker_reported", "connection_lost", "processes_exited", "launch_failed".
std::string CauseOf(const Event& event);

class SideNotes {
 public:
  JobNotes& of(const JobId& job) { return jobs_[job]; }
  void Forget(const JobId& job) { jobs_.erase(job); }

  // A worker's message, before the core sees it. `now` is monotonic, here and below.
  void Heard(const WorkerId& worker, const v1::AttachRequest& message, absl::Duration now);
  void Attached(const WorkerId& worker, absl::Duration now);
  // The job went from one state to another on this event.
  void Moved(const JobId& job, JobState from, JobState to, const Event& event, absl::Duration now);
  // The newest generation has so many ranks: the time of those that it lacks has ended.
  void Narrow(const JobId& job, size_t ranks, absl::Duration now);

 private:
  std::map<JobId, JobNotes> jobs_;
};

}  // namespace espalier
