// Following a job to its end on the terminal: `watch` and `submit --wait`. One thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/ctl/client.h"
#include "coordinator/ctl/options.h"

namespace espalier::ctl {

// Redraws a frame on a terminal, appends lines elsewhere, prints one JSON document a line with
// -o json. Returns the last status: final, unless nobody reads the output any more.
absl::StatusOr<v1::JobStatus> ShowProgress(Context& context, OperatorClient& client,
                                           const std::string& job);

// Waits in silence for the final status.
absl::StatusOr<v1::JobStatus> WaitForEnd(OperatorClient& client, const std::string& job);

// The exit code for the last status seen: that of a final state, or kDone when the reader left.
ExitCode ExitCodeAfter(const v1::JobStatus& status);

}  // namespace espalier::ctl
