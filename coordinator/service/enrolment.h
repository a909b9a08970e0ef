// Enrolment: what makes a certificate for a machine that joins: the CA that espalierd trusts, and
// its key, which is read each time and may be away. Used by coordinator/service and tests. Any
// thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/rpc/pki.h"
#include "common/rpc/server_identity.h"

namespace espalier {

struct EnrolmentOptions {
  // Null: no TLS, and nobody can join.
  std::shared_ptr<const ServerIdentity> identity;
  // Where the CA's certificate lies (tls.ca of the cluster file); its key lies beside it.
  std::string ca_path;
};

class Enrolment {
 public:
  Enrolment(EnrolmentOptions options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  struct Certificate {
    std::string pem;
    std::string fingerprint;
    std::string serial;
  };
  // For the key of the signing request (PKCS #10, PEM), in the name and for the role of the node,
  // whatever the request says. Errors as of Check, and INVALID_ARGUMENT for a bad request.
  absl::StatusOr<Certificate> Certify(const NodeName& node, absl::string_view request) const;

  // FAILED_PRECONDITION, with what to do, when certificates cannot be made here: there is no TLS,
  // or no key of the CA, or another's.
  absl::Status Check() const;
  // What a machine must know to join, but for its token. Errors as of Check, and UNAVAILABLE before
  // Announce.
  struct Place {
    // HOST:PORT.
    std::string coordinator;
    // SHA-256 of the CA's certificate, in hex.
    std::string ca_sha256;
  };
  absl::StatusOr<Place> Describe() const;
  // Where machines of the cluster reach espalierd, once it listens.
  void Announce(std::string coordinator);

 private:
  absl::StatusOr<PemPair> Ca() const;

  const EnrolmentOptions options_;
  Clock& clock_;
  mutable absl::Mutex mutex_;
  std::string coordinator_ ABSL_GUARDED_BY(mutex_);
};

// The certificates of nodes that join are valid for so long.
inline constexpr absl::Duration kNodeCertificateLife = absl::Hours(24 * 365);

// How far the clock of a machine that wants to join may be from espalierd's, as of a node that gets
// jobs: certificates begin so much in the past. FAILED_PRECONDITION says by how much it is wrong.
absl::Status CheckClock(double unix_seconds, absl::Time now);

}  // namespace espalier
