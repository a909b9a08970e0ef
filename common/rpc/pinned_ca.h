// The CA of a server of which only the CA's fingerprint is known, as somebody who is trusted wrote
// it down: how a machine without a certificate comes to trust espalierd. Used by coordinator/agent
// and tests. Any thread; waits at most for its timeout.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

// INVALID_ARGUMENT unless it is a SHA-256 in hex (64 digits).
absl::Status CheckFingerprint(absl::string_view sha256);

// Whom a machine that joins is told to trust.
struct PinnedServer {
  // HOST:PORT.
  std::string address;
  // SHA-256 of the CA's certificate, in hex.
  std::string ca_sha256;
};

// Asks the server for its certificates and returns the CA's, in PEM form, if it has this
// fingerprint and the server's own certificate is of that CA, valid now, and names the host.
// Nothing is told to the server.
//
// INVALID_ARGUMENT: a malformed address or fingerprint.
// UNAVAILABLE: nobody answers, and why.
// FAILED_PRECONDITION: who answers speaks no TLS.
// UNAUTHENTICATED: what is wrong with the certificates: another CA (with both fingerprints),
// another name, expired, or not valid yet by the clock here.
//
// `clock` tells whether the certificates are valid now.
absl::StatusOr<std::string> FetchPinnedCa(const PinnedServer& server, Clock& clock,
                                          absl::Duration timeout);

}  // namespace espalier
