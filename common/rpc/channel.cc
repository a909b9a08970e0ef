#include "common/rpc/channel.h"

#include <grpc/support/time.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/rpc/call.h"
#include "common/rpc/certificate.h"
#include "common/rpc/local_access.h"
#include "common/rpc/probe.h"

namespace espalier {
namespace {

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also the least time that one attempt gets, handshake included: busy machines need it.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // The coordinator is a machine of the same network: never through a web proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each channel its own connection, so that two identities in one process stay apart.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

absl::Status NeedsTls(absl::string_view address) {
  return absl::UnauthenticatedError(absl::StrCat(
      address,
      " is not this machine's loopback, so it needs TLS: give the CA, certificate and key "
      "that `espalier pki issue` made for you"));
}

// gRPC takes a path for part of a URI.
std::string SocketUri(absl::string_view path) {
  std::string uri = "unix:";
  for (const unsigned char c : path) {
    if (absl::ascii_isalnum(c) || absl::StrContains("/-_.", static_cast<char>(c))) {
      uri.push_back(static_cast<char>(c));
    } else {
      absl::StrAppendFormat(&uri, "%%%02X", c);
    }
  }
  return uri;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeSocketChannel(const std::string& path,
                                                                 bool with_certificates) {
  if (with_certificates) {
    return absl::InvalidArgumentError(
        absl::StrCat("certificates were given, but ", path,
                     " is a Unix socket, which needs none: leave them out, or give HOST:PORT of "
                     "the coordinator"));
  }
  return grpc::CreateCustomChannel(SocketUri(path), grpc::InsecureChannelCredentials(),
                                   Arguments());
}

}  // namespace

absl::StatusOr<ChannelTarget> MakeTarget(const std::string& coordinator,
                                         std::optional<TlsFiles> tls,
                                         const std::string& token_file) {
  ChannelTarget target{.tls = std::move(tls)};
  ASSIGN_OR_RETURN(target.address, CoordinatorAddress(coordinator));
  if (target.tls.has_value()) return target;
  ASSIGN_OR_RETURN(target.token, FindToken(target.address, token_file));
  return target;
}

ChannelTarget ByOwnSocket(ChannelTarget target) {
  const std::optional<std::string> socket = SocketOfOwn(target.address);
  if (!socket.has_value() || TryUnixSocket(*socket) != 0) return target;
  return {.address = absl::StrCat("unix:", *socket)};
}

void PrepareCall(grpc::ClientContext& context, const ChannelTarget& target,
                 absl::Duration timeout) {
  SetDeadline(context, timeout);
  if (!target.token.empty()) context.AddMetadata(kTokenHeader, target.token);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelTarget& target,
                                                           Clock& clock) {
  if (const std::optional<std::string> path = SocketOf(target.address)) {
    return MakeSocketChannel(*path, target.tls.has_value());
  }
  ASSIGN_OR_RETURN(const HostPort address, ParseAddress(target.address));
  if (!target.tls.has_value()) {
    if (!IsLoopback(target.address)) return NeedsTls(target.address);
    return grpc::CreateCustomChannel(address.ToString(), grpc::InsecureChannelCredentials(),
                                     Arguments());
  }
  ASSIGN_OR_RETURN(const TlsIdentity identity,
                   LoadTls(*target.tls, CertificateUse::kClient, clock.Now()));
  const grpc::SslCredentialsOptions options{.pem_root_certs = identity.ca,
                                            .pem_private_key = identity.key,
                                            .pem_cert_chain = identity.certificate};
  return grpc::CreateCustomChannel(address.ToString(), grpc::SslCredentials(options), Arguments());
}

bool Connect(grpc::Channel& channel, absl::Duration timeout) {
  const gpr_timespec span = gpr_time_from_millis(absl::ToInt64Milliseconds(timeout), GPR_TIMESPAN);
  const gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span);
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (!channel.WaitForStateChange(state, until)) return false;
  }
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeStrangerChannel(const std::string& address,
                                                                   const std::string& ca) {
  ASSIGN_OR_RETURN(const HostPort parsed, ParseAddress(address));
  const grpc::SslCredentialsOptions options{.pem_root_certs = ca};
  return grpc::CreateCustomChannel(parsed.ToString(), grpc::SslCredentials(options), Arguments());
}

}  // namespace espalier
