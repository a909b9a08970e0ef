// Between the messages of proto/ and the core's plain data. Used by the loop and the journal's
// records. Thread rule: pure functions.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "espalier/v1/operator.pb.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

v1::Directive ToProto(const Directive& directive);
Directive FromProto(const v1::Directive& directive);
v1::ShardPlan ToProto(const ShardPlan& plan);
v1::CheckpointReport ToProto(const Checkpoint& checkpoint);

// The event of a worker's message; nullopt: an empty or malformed one, which is ignored.
std::optional<Event> WorkerEvent(LinkId link, const v1::AttachRequest& message);

inline int64_t ToUnixMs(absl::Time time) {
  return time == absl::UnixEpoch() ? 0 : absl::ToUnixMillis(time);
}

}  // namespace espalier
