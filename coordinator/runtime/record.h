// The core's records as bytes of the journal, and back. Used by the loop.
// Thread rule: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"

namespace espalier {

std::string EncodeJob(const JobRecord& record);
std::string EncodeNode(const NodeHealth& node);
// DATA_LOSS: not such a record, or one with a state that this version does not know.
absl::StatusOr<JobRecord> DecodeJob(absl::string_view bytes);
absl::StatusOr<NodeHealth> DecodeNode(absl::string_view bytes);

}  // namespace espalier
