#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/rpc/call.h"
#include "common/rpc/certificate.h"

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

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelTarget& target,
                                                           Clock& clock) {
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

}  // namespace espalier
