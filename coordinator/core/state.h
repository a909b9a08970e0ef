// ClusterState: everything the core knows. JobRecord and NodeRecord are journaled; the rest is
// learnt again from the workers and agents after a restart. Changed by Advance only; the loop reads
// it to answer questions. Used by coordinator/. Thread rule: belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/interruption.h"
#include "coordinator/core/job_record.h"
#include "coordinator/core/node.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/training_health.h"

namespace espalier {

// The numbers equal those of worker.proto.
enum class Phase {
  kStarting = 1,
  kBoundary = 2,
  kDataWait = 3,
  kCompute = 4,
  kExchange = 5,
  kUpdate = 6,
  kEvaluate = 7,
  kCheckpoint = 8,
  kPaused = 9,
  kStopping = 10,
  kRollout = 11,
  kReward = 12,
};

// The numbers equal those of worker.proto.
enum class Outcome {
  kCompleted = 1,  // every step is committed and the last checkpoint is published
  kStopped = 2,    // as the directive said
  // The rank met an error of its own; its code tells whose fault that may be.
  kFailed = 3,
  // Another rank was lost, or a wait ran out.
  kLost = 4,
};

// The counters by which a worker is alive: it is while any of them changes.
struct Counters {
  Step step;  // committed
  Phase phase = Phase::kStarting;
  // Collective operations and pieces of work completed since the generation's start.
  int64_t collective = 0;
  int64_t work = 0;
  int64_t layer = 0;  // of the pass at hand; see worker.proto
  friend bool operator==(const Counters&, const Counters&) = default;
};

// One rank of the newest generation, as last heard of.
struct TrackedRank {
  NodeName node;
  std::optional<StreamId> stream;  // absent: not attached
  int64_t pid = 0;
  std::optional<Step> ready;  // joined the world; the committed steps it starts from
  std::string device;
  std::string data_sha256;  // of the data's manifest; empty: it has not said
  std::string version;      // of its Espalier; may be empty
  Counters counters;
  int64_t memory_bytes = 0, memory_peak_bytes = 0;
  int64_t acked = 0;  // newest directive it has obeyed
  std::optional<Outcome> outcome;
  // The error it met by itself, as it said or as others that heard of it did.
  absl::Status failure;
  bool unfit = false;  // and met it because its node is as it is, or may have
  // When a counter last changed, when anything was last heard, and when its stream broke.
  absl::Time progressed_at = absl::UnixEpoch(), heard_at = absl::UnixEpoch();
  std::optional<absl::Time> detached_at;
  absl::Time lease_until = absl::InfinitePast();  // then it has certainly run out
  int64_t detached_order = 0;                     // of the generation's streams that broke, from 1
  std::optional<StepFigures> last_step;
  std::optional<bool> keeps_most;  // of what is done before the present step; absent: not said
  bool keeps_nothing = false;      // any more, since its folder takes nothing
};

// The volatile side of the newest generation.
struct World {
  std::vector<TrackedRank> ranks;
  int64_t detachments = 0;                              // streams that broke so far
  absl::Time launch_deadline = absl::InfiniteFuture();  // of attaching and agreeing
  std::optional<absl::Time> failed_at;  // a rank met an error of its own; others may tell more
  // The launcher said that no process is left, and why; last words may still be on their way.
  std::optional<absl::Time> exited_at;
  std::string exit_reason;
  std::optional<Rank> exit_culprit;    // ended first, as far as the launcher knows
  std::vector<NodeName> unconfirmed;   // nodes for which it could not say so
  bool awaits_leases = false;          // theirs
  bool blamed = false;                 // a fault was booked on a node for its end
  std::optional<int64_t> kept;         // the most that its ranks said, of the job's present step
  bool practised = false;              // more than they said first, or than there ever was
  bool unheard_since_restart = false;  // taken over, and no rank has come back yet
  // When the job may next be looked at for nodes that it could take in.
  absl::Time grow_at = absl::InfinitePast();
  // Since when the checkpoint of a change of nodes cannot be written.
  std::optional<absl::Time> unsaved_since;
  std::string stays;  // why it should leave a node, but for want of a checkpoint
  std::optional<absl::Time> finished_at;  // all said their last word: the processes must end soon
  PlanWatch plan_watch;
};

struct Job {
  JobRecord record;
  size_t vain_launches = 0;                   // in a row, for what espalierd's machine lacks
  absl::Time entered_at = absl::UnixEpoch();  // its state, by the core's time
  World world;
  Figures figures;
  TrainingHealth health;
  Interruption interruption;
};

struct WorkerId {
  JobId job;
  Generation generation;
  Rank rank;
  friend auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

struct ClusterState {
  NodeTable nodes;
  std::map<JobId, Job> jobs;
  // Streams that have said hello and were not refused: of workers, and of agents for their nodes.
  std::map<StreamId, WorkerId> streams;
  std::map<StreamId, NodeName> agents;
  // Until then, the queue waits for agents that were there before espalierd started; past: no more.
  absl::Time agents_due = absl::InfinitePast();
  // Names that are no nodes: invited, or forgotten with certificates that are refused.
  std::map<NodeName, NodeRecord> absent;
  // Serial numbers of certificates that are refused, of all records.
  std::set<std::string> revoked;
  v1::NodeVersions versions;  // espalierd's own; what it does not know is empty
  int64_t next_job = 1;
  absl::Time next_retention = absl::InfinitePast();  // when old jobs are looked for again
  // Time of the last event; it never goes back.
  absl::Time now = absl::InfinitePast();
  absl::Duration wall_ahead;  // what the machine's clock says by then, less that
};

}  // namespace espalier
