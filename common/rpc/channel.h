// Client channels to espalierd: insecure on a Unix socket and on loopback, mutual TLS elsewhere,
// with keepalive, and an explanation of why a server cannot be reached. Used by worker/control,
// coordinator/agent, coordinator/ctl and diagnose.cc. Thread rule: any thread.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

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
  // HOST:PORT, where the server's certificate must name HOST; or "unix:" and the path of a socket.
  std::string address;
  // Absent: no TLS, allowed on loopback and needed on a socket.
  std::optional<TlsFiles> tls;
  // What a coordinator without TLS wants to see on loopback; see local_access.h.
  std::string token;
};

// `coordinator` as CoordinatorAddress takes it. The token of one on loopback without TLS is found
// as FindToken says.
absl::StatusOr<ChannelTarget> MakeTarget(const std::string& coordinator,
                                         std::optional<TlsFiles> tls,
                                         const std::string& token_file);

// The same espalierd by the Unix socket in the default state folder, where it says that it listens
// at the target's address and answers on the socket: what a machine tells itself must not need a
// network, whose address may go with its cable. Else the target as it is.
ChannelTarget ByOwnSocket(ChannelTarget target);

// The call carries the target's token, and ends as SetDeadline says.
void PrepareCall(grpc::ClientContext& context, const ChannelTarget& target, absl::Duration timeout);

// A channel that connects on its first call and reconnects by itself. Refused at once: a malformed
// address, certificates for a socket (INVALID_ARGUMENT), another host without TLS or an own
// certificate that is missing, expired, of another CA or not of its key (UNAUTHENTICATED). `clock`
// tells whether it expired.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelTarget& target,
                                                           Clock& clock);

// Has the channel connect, and waits up to `timeout` for it. Whether it is connected.
bool Connect(grpc::Channel& channel, absl::Duration timeout);

// A channel to a server whose certificate names the host and is of this CA (PEM), for calls that
// need no certificate of the caller: IsForStrangers in role.h.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeStrangerChannel(const std::string& address,
                                                                   const std::string& ca);

// Tries to reach the target by itself (a socket, or TCP, then a TLS handshake), within `timeout`,
// and says what stands in the way: UNAVAILABLE (nothing listens, no route, no such host),
// PERMISSION_DENIED (the socket of another user), UNAUTHENTICATED (wrong CA, expired certificate,
// another name, TLS on one side only); OK when nothing does.
absl::Status DiagnoseConnection(const ChannelTarget& target, Clock& clock, absl::Duration timeout);

// For a failed call: when nobody answered (UNAVAILABLE, DEADLINE_EXCEEDED), the diagnosis if there
// is one; else `error` itself. Takes at most five seconds.
absl::Status ExplainFailure(const absl::Status& error, const ChannelTarget& target, Clock& clock);

}  // namespace espalier
