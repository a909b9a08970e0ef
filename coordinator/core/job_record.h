// JobRecord: the part of a job that is journaled, from which a restarted coordinator continues it.
// Written by the core, stored whole by the loop on every PersistJob. Plain value: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/directive.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// The job machine; README.md has the diagram. The numbers equal those of operator.proto.
enum class JobState {
  // Waits for nodes, or for a hand-started mpirun.
  kQueued = 1,
  // A generation is being started.
  kLaunching = 2,
  // Steps are being committed.
  kRunning = 3,
  // A pause was sent; the step is being finished (hard: a checkpoint too).
  kPausing = 4,
  // Processes wait in memory, without using the processor.
  kPausedSoft = 5,
  // Nothing runs, nodes are free.
  kPausedHard = 6,
  // A planned change of nodes at the next boundary.
  kRegrouping = 7,
  // The generation is being ended after a fault, or the wait before the next one.
  kRecovering = 8,
  // Asked to stop.
  kCancelling = 9,
  // Final, like the two below.
  kCompleted = 10,
  kFailed = 11,
  kCancelled = 12,
};

// What the operator asked for last; the machine moves towards it from every state.
enum class Wish {
  kRun,
  kPauseSoft,
  kPauseHard,
  kCancel,
};

// What exists of the newest generation outside the coordinator.
enum class Processes {
  // None: never started, or known to be gone.
  kNone,
  // Launched (or about to be, right after the journal's commit), or attached by hand.
  kRunning,
  // Kill was asked for; not known to be gone yet.
  kEnding,
};

// How the job will end once its processes are gone.
enum class Verdict {
  kOpen,
  kComplete,
  kFail,
};

// A published checkpoint, or the failure to write one (error is set).
struct Checkpoint {
  Step step;
  std::string path;
  int64_t bytes = 0;
  double seconds = 0;
  std::string error;
  absl::Time at = absl::UnixEpoch();
};

struct Evaluation {
  // Committed steps at the time.
  Step step;
  // Mean loss per token on the validation split, in nats.
  double loss = 0;
};

struct JobRecord {
  JobId id;
  // Order of submission, from 1.
  int64_t number = 0;
  // The submitter's; empty when a hand-started mpirun made the job.
  std::string request_id;
  // With its defaults filled in.
  v1::JobSpec spec;
  // The file as the person wrote it.
  std::string yaml;
  absl::Time submitted_at = absl::UnixEpoch();

  JobState state = JobState::kQueued;
  // Why the job is in this state, for people.
  std::string reason;
  absl::Time state_since = absl::UnixEpoch();
  Wish wish = Wish::kRun;
  Verdict verdict = Verdict::kOpen;
  std::string verdict_reason;
  // Number of the last row of the job's history.
  int64_t last_event = 0;

  // The newest generation, and the node of each of its ranks.
  Generation generation;
  std::vector<NodeName> nodes;
  // Of the hand-started mpirun; empty otherwise.
  std::string external_id;
  Processes processes = Processes::kNone;
  Directive directive;
  // The first directive of this generation with the present run_state: a rank that has obeyed it
  // or a later one does what is wanted.
  int64_t run_state_number = 0;
  int64_t last_plan = 0;
  // A checkpoint was asked for and not reported yet.
  bool checkpoint_wanted = false;

  // Faults within the restart window, oldest first.
  std::vector<absl::Time> faults;
  // Generations started after a fault, in all.
  int32_t restarts = 0;
  // When kRecovering may start the next generation.
  absl::Time retry_at = absl::UnixEpoch();

  // Committed steps when the record was written; more may have been reported since.
  Step step;
  int64_t skipped_steps = 0;
  std::optional<Evaluation> evaluation;
  std::optional<Checkpoint> checkpoint;
};

}  // namespace espalier
