// Effect: everything the core wants done, as data. Advance returns them in the order in which they
// must be applied: journal (in one commit), directives and streams, launches and kills, replies.
// Applied by the loop and by the simulator. Used by coordinator/core and coordinator/loop. Plain
// values: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "coordinator/core/event.h"

namespace espalier {

// Journal: replaces the job's row.
struct PersistJob {
  JobRecord record;
};
// Journal: removes the job's row and history. The job is in the state no more.
struct ForgetJob {
  JobId job;
};
// Journal: replaces the node's row.
struct PersistNode {
  NodeRecord record;
};
// Journal: a row of the job's history. Numbers grow from 1 within a job.
struct AppendEvent {
  JobId job;
  int64_t number = 0;
  absl::Time time = absl::UnixEpoch();
  JobState state = JobState::kQueued;
  std::string text;
};

// Answers a hello; the spec is in the state.
struct Welcome {
  StreamId stream;
  WorkerId worker;
  // As the worker introduced itself, so that the launcher can end it.
  NodeName node;
  int64_t pid = 0;
  Directive directive;
  // With less than these committed steps the generation must not begin; who holds them, for people.
  Step least;
  std::string least_held_by;
  // It has trained, or much was done before its first step: what a start lacks, it had elsewhere.
  bool has_got_on = false;
  // What is trained is to outlive the process.
  bool keep_warm = false;
};
struct SendDirective {
  StreamId stream;
  Directive directive;
};
// The worker may commit steps for a lease more, from when it sent this beat.
struct RenewLease {
  StreamId stream;
  int64_t beat = 0;
};
// Ends the stream. FAILED_PRECONDITION fences the worker: it exits. Anything else makes it attach
// again.
struct CloseStream {
  StreamId stream;
  absl::Status status;
};

// To a node's agent: memory of a job up to this step of this history is not needed any more. Told
// again until it is gone.
struct DropMemory {
  StreamId stream;
  JobId job;
  int64_t history = 0;
  Step step;
};

// To a node's agent: find out whether the node could train the job. Told again until it has.
struct Rehearse {
  StreamId stream;
  JobId job;
  NodeName node;
};

// Answered by LaunchFailed or, in the end, by ProcessesExited.
struct Launch {
  GenerationKey key;
  // The node of each rank, in order.
  std::vector<NodeName> nodes;
};
// Answered by ProcessesExited. Repeating is harmless.
struct Kill {
  GenerationKey key;
};

// Answers an operator's call, once. On error nothing was changed.
struct Reply {
  RequestId request;
  absl::Status status;
  JobId job;
  // Of a pause: what it frees and what resuming will cost.
  std::string explanation;
  // The job was so already, as the explanation says.
  bool nothing_to_do = false;
};

using Effect = std::variant<PersistJob, ForgetJob, PersistNode, AppendEvent, Welcome, SendDirective,
                            RenewLease, CloseStream, DropMemory, Rehearse, Launch, Kill, Reply>;

}  // namespace espalier
