// The core's data as messages: the parts that the protocol shares with the journal, and the records
// as bytes of the journal, and back. Used by coordinator/loop and coordinator/service. Thread rule:
// pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

v1::Directive ToProto(const Directive& directive);
Directive FromProto(const v1::Directive& directive);
v1::ShardPlan ToProto(const ShardPlan& plan);
v1::CheckpointReport ToProto(const CheckpointRecord& checkpoint);

// 0 for the epoch, which is "never".
inline int64_t ToUnixMs(absl::Time time) {
  return time == absl::UnixEpoch() ? 0 : absl::ToUnixMillis(time);
}

std::string EncodeJob(const JobRecord& record);
std::string EncodeNode(const NodeRecord& node);
// DATA_LOSS: not such a record, or one with a state that this version does not know.
absl::StatusOr<JobRecord> DecodeJob(absl::string_view bytes);
absl::StatusOr<NodeRecord> DecodeNode(absl::string_view bytes);

}  // namespace espalier
