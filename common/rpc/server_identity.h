// ServerIdentity: the certificate of a gRPC server, which can be replaced by a newer one while the
// server serves. Used by server_credentials.h and coordinator/service. Any thread.
//
// gRPC reads certificate and key from files, by and by, and does not judge them. So it is given a
// copy, in one file, which is replaced only by what was verified.
#pragma once

#include <grpcpp/security/tls_certificate_provider.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/rpc/certificate.h"

namespace espalier {

class ServerIdentity {
 public:
  // `copy` is a file that the owner alone can read, in a folder of his; it is removed at the end.
  // UNAUTHENTICATED when the certificate is missing, expired, of another CA, not of its key or not
  // of the role coordinator. `clock` outlives it.
  static absl::StatusOr<std::shared_ptr<ServerIdentity>> Load(TlsFiles files, std::string copy,
                                                              Clock& clock);
  ~ServerIdentity();

  // Takes what the files hold now; connections made from a second later on see it. On an error, as
  // of Load, what was there stays.
  absl::StatusOr<CertificateInfo> Reload();

  // The CA that clients' certificates must be of.
  std::string ca() const;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider() const {
    return provider_;
  }

 private:
  ServerIdentity(TlsFiles files, std::string copy, Clock& clock)
      : files_(std::move(files)), copy_(std::move(copy)), clock_(clock) {}

  const TlsFiles files_;
  const std::string copy_;
  Clock& clock_;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
  mutable absl::Mutex mutex_;
  std::string ca_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
