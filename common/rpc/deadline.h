// Deadlines of client calls: every call has one. Used by worker/control and coordinator/ctl.
// Thread rule: as the context's, before the call starts.
#pragma once

#include <grpcpp/client_context.h>

#include "absl/time/time.h"

namespace espalier {

// Longest life of one stream (Attach, Watch, Logs). Streams end earlier when keepalive finds the
// peer gone; whoever needs one for longer opens it again.
constexpr absl::Duration kStreamDeadline = absl::Hours(24 * 7);

// The call ends with DEADLINE_EXCEEDED after `timeout` from now (monotonic; longer than
// kStreamDeadline is cut to it).
void SetDeadline(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace espalier
