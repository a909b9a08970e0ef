// Between the messages of the workers and operators and the core's events and effects. Used by
// coordinator/loop and coordinator/service. Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "coordinator/loop/inbox.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

// The event of a worker's message; nullopt: an empty or malformed one, which is ignored.
std::optional<Event> WorkerEvent(StreamId stream, const v1::AttachRequest& message);
// A hand-started worker brings its own spec, which nobody has checked; its defaults are filled in.
// FAILED_PRECONDITION, upon which the worker exits.
absl::Status CheckExternalSpec(v1::AttachRequest& message);
// What the clock here says, `wall`, in a tick, and how far a node's is ahead of it where an event
// brings a report, since the core does not see a clock. Nothing is changed in any other event.
void NoteClock(Event& event, absl::Time wall);
Event CallEvent(RequestId id, const OperatorRequest& request);

// `record` is that of the worker's job; `memory_limit_bytes` that of its node, 0: none.
v1::AttachResponse WelcomeMessage(const Welcome& effect, const JobRecord& record,
                                  int64_t memory_limit_bytes, const std::string& state_dir);
// Where the checkpoints of a job go: its spec's folder, or STATE_DIR/jobs/ID/checkpoints.
std::string CheckpointDirectory(const JobRecord& record, const std::string& state_dir);
// Where the workers of every node register what they keep in memory.
std::string WarmFolder(const std::string& state_dir);

}  // namespace espalier
