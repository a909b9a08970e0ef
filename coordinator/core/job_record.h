// JobRecord: the part of a job that is journaled, from which a restarted coordinator continues it,
// with the directive that says what is wanted of its newest generation. Written by the core, stored
// whole by the loop on every PersistJob. Used by directives.h and state.h. Plain values: any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/job_state.h"
#include "coordinator/planner/figures.h"
#include "coordinator/planner/shard_plan.h"
#include "coordinator/planner/speed_model.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// The numbers equal those of worker.proto, whose comments say what each means to a worker.
enum class RunState {
  // Commit steps.
  kRun = 1,
  // Finish the step, stay in memory without using the processor.
  kPause = 2,
  // Finish the step and exit.
  kStop = 3,
};

// The whole of what is wanted; a newer number replaces an older one. Numbers start from 1 in every
// generation.
struct Directive {
  int64_t number = 0;
  RunState run_state = RunState::kRun;
  // Grows with every checkpoint asked for within a generation.
  int64_t checkpoint_request = 0;
  bool checkpoint_before_stop = false;  // with kStop
  ShardPlan plan;
  std::vector<RankLimit> limits;  // by rank; empty: none is limited
  friend bool operator==(const Directive&, const Directive&) = default;
};

// A published checkpoint, or the failure to write one (error is set).
struct CheckpointRecord {
  Step step;
  std::string path;
  int64_t bytes = 0;
  double seconds = 0;
  std::string error;
  absl::Time at = absl::UnixEpoch();
};

// What a node holds of the job, as the rank there found it or wrote it.
struct HolderRecord {
  NodeName node;
  // Committed steps of the newest state there; 0: it was looked for, and there is none.
  Step step;
  // What lies there of newer ones up to this step is damaged, whoever sees it. 0: nothing is known.
  Step passed_over = Step(0);
};

// How fast a node computes this job.
struct SpeedRecord {
  NodeName node;
  SpeedModel speed;
};

// The last error that ranks met by themselves: when it comes again, it may be the job's.
struct FailureRecord {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  // Committed steps at the time.
  Step step;
  Generation generation;
  std::vector<NodeName> nodes;
};

struct JobRecord {
  JobId id;
  // Order of submission, from 1.
  int64_t number = 0;
  // The submitter's; empty when a hand-started mpirun made the job.
  std::string request_id;
  v1::JobSpec spec;                             // with its defaults filled in
  std::string yaml;                             // the file as the person wrote it
  absl::Time submitted_at = absl::UnixEpoch();  // by espalierd's clock, as is state_since

  JobState state = JobState::kQueued;
  std::string reason;  // why the job is in this state, for people
  absl::Time state_since = absl::UnixEpoch();
  DesiredState desired = DesiredState::kRun;
  Verdict verdict = Verdict::kOpen;
  std::string verdict_reason;
  // Number of the last row of the job's history.
  int64_t last_event = 0;

  // The newest generation, the node of each of its ranks, and those of the last that trained.
  Generation generation;
  std::vector<NodeName> nodes;
  std::vector<NodeName> trained_on;
  std::string external_id;  // of the hand-started mpirun; empty otherwise
  Processes processes = Processes::kNone;
  Directive directive;
  // The first directive of this generation with the present run_state: a rank that has obeyed it
  // or a later one does what is wanted.
  int64_t run_state_number = 0;
  int64_t last_plan = 0;
  bool checkpoint_wanted = false;  // asked for, and not reported yet
  bool called_off = false;         // a change of this generation's nodes: a rank may have stopped

  // Faults within the restart window since the job last advanced, oldest first.
  std::vector<absl::Time> faults;
  // The most steps that were committed at a fault, and the most that was kept there of the one that
  // comes next: more than these are an advance.
  Step fault_step;
  int64_t fault_kept = 0;
  int32_t unseen_ends = 0;  // generations since then that ended while the coordinator was away
  std::optional<FailureRecord> failure;
  int32_t unexplained = 0;  // faults since then for which nobody in particular was to blame
  // Nodes that others did not hear from any more at these, as often as one said so.
  std::vector<NodeName> unheard;
  int32_t restarts = 0;                     // generations started after a fault, in all
  absl::Time retry_at = absl::UnixEpoch();  // when kRecovering may start the next generation

  // Committed steps when the record was written; more may have been reported since.
  Step step;
  int64_t kept = 0;  // of what is done before the next one: as much as ever was on disk
  std::vector<NodeName> practised_on;  // that have about the most of what came before the first one
  int64_t skipped_steps = 0;
  // Of those reported by then; the journal keeps what people ask of it when the job is over.
  std::optional<StepFigures> last_step;
  std::optional<EvaluationRecord> evaluation;
  // Of the schedule's learning rate, by plateaus, as it was told last.
  double rate_factor = 1;
  // Of TrainingHealth, that hold, by name.
  std::vector<std::string> warnings;
  // Without a path when later ones turned out to be damaged, and the job began from this one.
  std::optional<CheckpointRecord> checkpoint;
  // The newest of those that could not be written, and how many there were.
  std::optional<CheckpointRecord> checkpoint_failure;
  int64_t checkpoint_failures = 0;
  int64_t history = 0;                // grows when what was committed is given up
  std::vector<HolderRecord> holders;  // by node; on one that is not named the job has never been
  // By node, as measured when the record was written; more may have been measured since.
  std::vector<SpeedRecord> speeds;
};

}  // namespace espalier
