// Client channels to espalierd: insecure on loopback, mutual TLS elsewhere, with keepalive, and an
// explanation of why a server cannot be reached. Used by worker/control, coordinator/ctl and
// diagnose.cc.
// Thread rule: any thread.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/pem_file.h"

namespace espalier {

struct ChannelTarget {
  std::string address;          // HOST:PORT; the server's certificate must name HOST.
  std::optional<TlsFiles> tls;  // Absent: no TLS, allowed on loopback only.
};

// A channel that connects on its first call and reconnects by itself. Refused at once: a malformed
// address (INVALID_ARGUMENT), another host without TLS or an own certificate that is missing,
// expired, of another CA or not of its key (UNAUTHENTICATED). `clock` tells whether it expired.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelTarget& target,
                                                           Clock& clock);

// Tries to reach the target by itself (TCP, then a TLS handshake), within `timeout`, and says what
// stands in the way: UNAVAILABLE (nothing listens, no route, no such host), UNAUTHENTICATED (wrong
// CA, expired certificate, another name, TLS on one side only); OK when nothing does.
absl::Status DiagnoseConnection(const ChannelTarget& target, Clock& clock, absl::Duration timeout);

// For a failed call: when nobody answered (UNAVAILABLE, DEADLINE_EXCEEDED), the diagnosis if there
// is one; else `error` itself. Takes at most five seconds.
absl::Status ExplainFailure(const absl::Status& error, const ChannelTarget& target, Clock& clock);

}  // namespace espalier
