// Credentials of espalierd's gRPC server. A client's certificate is requested in the handshake but
// verified here, per call, so that a refusal reaches the client as a sentence (UNAUTHENTICATED,
// PERMISSION_DENIED) and not as a broken connection. Used by coordinator/service.
// Thread rule: any thread; the verification runs on gRPC's threads.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/rpc/role.h"
#include "common/rpc/server_identity.h"

namespace espalier {

struct ServerTls {
  std::string listen;  // HOST:PORT about to be listened on.
  // Absent: no TLS, allowed on loopback only, and with a token.
  std::shared_ptr<ServerIdentity> identity;
  // Without TLS, calls must carry it in kTokenHeader (local_access.h); it then opens everything.
  std::string token;
  // Whether the certificate with this serial number is refused although it verifies; may be empty.
  // Called on gRPC's threads.
  std::function<bool(const std::string& serial)> revoked;
  // Hears of every refused call (certificate name, method, reason), for the log; may be empty.
  // Called on gRPC's threads.
  std::function<void(absl::string_view name, absl::string_view method, const absl::Status&)>
      refused;
};

// With TLS, every call needs a certificate but those of IsForStrangers (role.h).
// FAILED_PRECONDITION when there is no TLS and `listen` is not loopback or there is no token. Who
// may call what: MayCall in role.h. `clock` must outlive the server.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerTls& options, Clock& clock);

// Keepalive of the server: accepts the pings of MakeChannel's clients and finds dead ones.
void SetServerKeepalive(grpc::ServerBuilder& builder);

// Who makes a call that was let through. Without TLS: "local", operator and worker alike.
struct Caller {
  std::string name;
  std::optional<Role> role;  // Absent without TLS.
  std::string fingerprint;   // Of the certificate, as its serial number; empty without TLS.
  std::string serial;
};
Caller CallerOf(const grpc::ServerContextBase& context);

// PERMISSION_DENIED when the caller has a certificate of another name than the node's: a node's
// certificate speaks for that node alone.
absl::Status CheckSpeaksFor(const Caller& caller, const NodeName& node);
// Of the worker of an mpirun that a person started: PERMISSION_DENIED in the same case, and when
// the caller's role does not let it make a job, as the first of these does.
absl::Status CheckStartsByHand(const Caller& caller, const NodeName& node);

}  // namespace espalier
