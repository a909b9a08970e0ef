// DiagnoseConnection: reaches for the server by plain sockets and OpenSSL, because gRPC reports
// every failure to connect as one UNAVAILABLE.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/rpc/certificate.h"
#include "common/rpc/channel.h"
#include "common/rpc/local_access.h"
#include "common/rpc/probe.h"

namespace espalier {
namespace {

constexpr absl::Duration kDiagnosisTimeout = absl::Seconds(5);

absl::Status ServerWantsTls(const std::string& address) {
  return absl::UnauthenticatedError(absl::StrCat(
      address,
      " speaks TLS: give the CA, certificate and key that `espalier pki issue` made for "
      "you"));
}

absl::Status NoTlsThere(const std::string& address) {
  return absl::UnauthenticatedError(
      absl::StrCat(address,
                   " does not speak TLS: it is an espalierd without TLS (then give no "
                   "certificates) or another program"));
}

absl::Status AboutServer(const std::string& address, const absl::Status& status) {
  return absl::UnauthenticatedError(
      absl::StrCat("the server at ", address, " is not trusted: ", status.message()));
}

absl::Status DiagnoseSocket(const std::string& path) {
  const int error = TryUnixSocket(path);
  const std::string folder = ParentPath(path);
  switch (error) {
    case 0:
      return absl::OkStatus();
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(absl::StrCat(
          path, " answers only the user who runs espalierd and root, and you have uid ", geteuid(),
          "; ask them, or for a certificate to reach it over TLS"));
    case ENOENT:
    case ENOTDIR:
      return absl::UnavailableError(
          absl::StrCat("no espalierd runs with the state folder ", folder,
                       "; start one, or name another's folder or HOST:PORT as the coordinator"));
    case ECONNREFUSED:
      return absl::UnavailableError(absl::StrCat("the espalierd with the state folder ", folder,
                                                 " has ended; start it again"));
    default:
      return absl::UnavailableError(
          absl::StrCat("cannot connect to ", path, ": ", std::strerror(error)));
  }
}

}  // namespace

absl::Status DiagnoseConnection(const ChannelTarget& target, Clock& clock, absl::Duration timeout) {
  if (const std::optional<std::string> path = SocketOf(target.address)) {
    return DiagnoseSocket(*path);
  }
  ASSIGN_OR_RETURN(const HostPort address, ParseAddress(target.address));
  const absl::Duration end = clock.Monotonic() + timeout;
  ASSIGN_OR_RETURN(const Socket socket, ConnectTcp(address, timeout));
  ProbeIdentity own;
  if (target.tls.has_value()) {
    ASSIGN_OR_RETURN(TlsIdentity identity,
                     LoadTls(*target.tls, CertificateUse::kClient, clock.Now()));
    own = {.certificate = identity.certificate, .key = identity.key, .ca = identity.ca};
  }
  const absl::StatusOr<std::vector<std::string>> server =
      FetchServerChain(socket, own, end - clock.Monotonic());
  if (!target.tls.has_value()) {
    return server.ok() ? ServerWantsTls(target.address) : absl::OkStatus();
  }
  if (!server.ok()) {
    return absl::IsUnavailable(server.status()) ? server.status() : NoTlsThere(target.address);
  }
  const absl::Status trusted =
      VerifyCertificate(server->front(), own.ca, CertificateUse::kServer, clock.Now()).status();
  if (!trusted.ok()) return AboutServer(target.address, trusted);
  const absl::Status named = CheckServerName(server->front(), address.host);
  return named.ok() ? named : AboutServer(target.address, named);
}

absl::Status ExplainFailure(const absl::Status& error, const ChannelTarget& target, Clock& clock) {
  if (!absl::IsUnavailable(error) && !absl::IsDeadlineExceeded(error)) return error;
  absl::Status found = DiagnoseConnection(target, clock, kDiagnosisTimeout);
  return found.ok() ? error : found;
}

}  // namespace espalier
