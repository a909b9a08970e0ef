// Exit codes of `espalier`, one per kind of outcome, so that scripts need not read messages.
// Documented in README.md. Pure functions: any thread.
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/operator.pb.h"

namespace espalier::ctl {

enum ExitCode {
  kDone = 0,
  kJobFailed = 1,    // submit --wait, watch: the job ended FAILED.
  kBadInput = 2,     // Usage, a bad job file, a value that is refused.
  kNotFound = 3,     // No such job, file or node.
  kWrongState = 4,   // The job's state does not allow it, or a file is there already.
  kUnreachable = 5,  // No espalierd answers.
  kNotAllowed = 6,   // Missing, expired or foreign certificate, or the wrong role.
  kTimedOut = 7,
  kJobCancelled = 8,  // submit --wait, watch: the job ended CANCELLED.
  kOther = 9,         // Anything else; the message says what.
};

ExitCode ExitCodeOf(const absl::Status& status);
// For a final state; kDone for COMPLETED.
ExitCode ExitCodeOf(v1::JobState final_state);

}  // namespace espalier::ctl
