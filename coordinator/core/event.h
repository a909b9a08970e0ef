// Event: everything that can happen to the coordinator's core. Made by the loop from gRPC messages,
// the launcher and the clock, and by the simulator. Used by coordinator/core, coordinator/loop and
// coordinator/service. Plain values: any thread. Worker events name the stream they came by; the
// core knows who attached on it. They come twice, late or not at all: what decides is absolute.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "coordinator/core/request.h"
#include "coordinator/core/state.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

// The first event of a coordinator's life, into an empty ClusterState: what the cluster file and
// the journal say, and the generations whose launch is in the journal (adopted by the launcher,
// which reports ProcessesExited for those that are gone).
struct CoordinatorStarted {
  // espalierd's own, as far as it knows them; VersionsFound tells the rest.
  v1::NodeVersions versions;
  std::vector<NodeName> nodes;
  // Of these nodes, as the cluster file says; may be empty.
  std::map<NodeName, v1::NodeSpec> specs;
  // Of nodes that have joined, and of names that are no nodes, too.
  std::vector<NodeRecord> records;
  std::vector<JobRecord> jobs;
  // The highest that any job had, also one that was forgotten: a number names one job for ever.
  int64_t last_number = 0;
  std::vector<GenerationKey> launches;
};
// Comes a few times a second.
struct Tick {
  // What the machine's clock says, which may have been set; absent: what the core's time does.
  std::optional<absl::Time> wall = {};
};

// Hello.
struct WorkerAttached {
  StreamId stream;
  WorkerId worker;  // empty: of a generation started by hand, and not welcomed yet
  int32_t world_size = 0;
  NodeName node;
  int64_t pid = 0;
  std::string version = {};                  // of its Espalier
  std::optional<v1::JobSpec> external_spec;  // hand-started only
  std::string external_id;
};
// The newest state on the rank's node, before the ranks agree where to start from; Step(0): none.
struct WorkerFoundState {
  StreamId stream;
  Step step;
};
struct WorkerReady {
  StreamId stream;
  Step next_step;
  std::string device;
  std::string data_sha256 = {};
};
// The heartbeat: the counters by which the rank is alive while they change.
struct WorkerHeartbeat {
  StreamId stream;
  Counters counters;
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;
  int64_t beat = 0;  // names the message, for a renewal; 0: none is asked for
};
struct WorkerStepReported {
  StreamId stream;
  StepFigures figures;
};
// Of what the ranks do before the step that follows `step`, so much is kept on disk; 0: nothing.
struct WorkerPractised {
  StreamId stream;
  Step step;
  int64_t kept = 0;
  double seconds = 0;  // that it took since the last report
  std::string error;   // why the rank keeps nothing any more; empty: it does
};
struct WorkerEvaluated {
  StreamId stream;
  EvaluationRecord evaluation;
  bool lowers_rate = false;  // from here on
};
struct WorkerCheckpointed {
  StreamId stream;
  CheckpointRecord checkpoint;  // `at` is set by the core
};
struct DirectiveAcked {
  StreamId stream;
  int64_t number = 0;
  Step next_step;
};
struct WorkerFinished {
  StreamId stream;
  Outcome outcome = Outcome::kLost;
  std::string reason;
  Step next_step;
  // With kFailed: the kind of error, and the ranks that met it; empty: this one.
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::vector<Rank> failed_ranks;
  // With kLost: those from which nothing came any more, though they may be well.
  std::vector<Rank> silent_ranks;
  // They met it because their nodes are as they are: on others the job can go on.
  bool of_their_nodes = false;
};
// The stream is gone.
struct WorkerDetached {
  StreamId stream;
};

// What espalierd has found out of the versions beside it, which takes a while.
struct VersionsFound {
  v1::NodeVersions versions;
};

// The launcher could not start the generation; nothing of it runs.
struct LaunchFailed {
  GenerationKey key;
  std::string reason;
};
// Nothing of the generation runs any more where that could be found out. Repeating is harmless.
struct ProcessesExited {
  GenerationKey key;
  // How it ended, for people.
  std::string reason;
  // The rank that ended first and took the others with it, where that is known.
  std::optional<Rank> culprit;
  // Where nobody confirms it: what runs there may go on until its lease is over.
  std::vector<NodeName> unconfirmed;
  // What ended first said by its exit status that what it was given is bad.
  bool bad_input = false;
};

using Event =
    std::variant<CoordinatorStarted, Tick, SubmitRequested, PauseRequested, ResumeRequested,
                 CancelRequested, CheckpointRequested, WorkerAttached, WorkerFoundState,
                 WorkerReady, WorkerHeartbeat, WorkerStepReported, WorkerPractised, WorkerEvaluated,
                 WorkerCheckpointed, DirectiveAcked, WorkerFinished, WorkerDetached, AgentAttached,
                 AgentReported, AgentDetached, NodeInvited, NodeJoined, NodeForgotten, NodeDrained,
                 NodeAllowed, NodeSet, VersionsFound, LaunchFailed, ProcessesExited>;

}  // namespace espalier
