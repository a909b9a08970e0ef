// What every call needs: a deadline, and its status in the words of the program; and with what it
// is made. Used by worker/control, coordinator/agent, coordinator/service and coordinator/ctl, and
// in this room by channel.cc and server_credentials.cc.
// Pure functions: any thread; a context belongs to the thread that starts its call.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace espalier {

// Longest life of one stream (Attach, Watch, Logs). Streams end earlier when keepalive finds the
// peer gone; whoever needs one for longer opens it again.
constexpr absl::Duration kStreamDeadline = absl::Hours(24 * 7);

// The call ends with DEADLINE_EXCEEDED after `timeout` from now (monotonic; longer than
// kStreamDeadline is cut to it).
void SetDeadline(grpc::ClientContext& context, absl::Duration timeout);

// gRPC's status and absl::Status: the codes are the same numbers.
absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// How client and server notice a dead connection: a ping after a quiet interval, and how long its
// answer may take. Both ends must agree, because the server punishes pings more frequent than it
// was told to expect.
constexpr int kKeepaliveIntervalMs = 5000;
constexpr int kKeepaliveTimeoutMs = 5000;

// With what the program runs, as these say it themselves: "gRPC 1.51.1, protobuf 3.21.12". What
// --version of each program tells beside its own, since faults are often those of a pair of
// versions.
std::string LibraryVersions();

}  // namespace espalier
