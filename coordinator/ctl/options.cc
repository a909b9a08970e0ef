#include "coordinator/ctl/options.h"

namespace espalier::ctl {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kBadInput;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return kWrongState;
    case absl::StatusCode::kUnavailable:
      return kUnreachable;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kNotAllowed;
    case absl::StatusCode::kDeadlineExceeded:
      return kTimedOut;
    default:
      return kOther;
  }
}

ExitCode ExitCodeOf(v1::JobState final_state) {
  switch (final_state) {
    case v1::JOB_STATE_COMPLETED:
      return kDone;
    case v1::JOB_STATE_FAILED:
      return kJobFailed;
    case v1::JOB_STATE_CANCELLED:
      return kJobCancelled;
    default:
      return kOther;
  }
}

}  // namespace espalier::ctl
