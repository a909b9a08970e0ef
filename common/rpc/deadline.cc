#include "common/rpc/deadline.h"

#include <grpc/support/time.h>

#include <algorithm>

namespace espalier {

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  const absl::Duration bounded =
      std::clamp(timeout, absl::Milliseconds(1), absl::Duration(kStreamDeadline));
  const gpr_timespec span = gpr_time_from_millis(absl::ToInt64Milliseconds(bounded), GPR_TIMESPAN);
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span));
}

}  // namespace espalier
