#include "common/rpc/server_identity.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// The shortest that gRPC knows.
constexpr unsigned kRefreshSeconds = 1;

}  // namespace

absl::StatusOr<std::shared_ptr<ServerIdentity>> ServerIdentity::Load(TlsFiles files,
                                                                     std::string copy,
                                                                     Clock& clock) {
  std::shared_ptr<ServerIdentity> identity(
      new ServerIdentity(std::move(files), std::move(copy), clock));
  RETURN_IF_ERROR(identity->Reload().status());
  // Both in one file, so that no reader sees the one without the other.
  identity->provider_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      identity->copy_, identity->copy_, kRefreshSeconds);
  return identity;
}

ServerIdentity::~ServerIdentity() {
  provider_.reset();
  unlink(copy_.c_str());
}

absl::StatusOr<CertificateInfo> ServerIdentity::Reload() {
  ASSIGN_OR_RETURN(TlsIdentity identity, LoadTls(files_, CertificateUse::kServer, clock_.Now()));
  const absl::MutexLock lock(&mutex_);
  // The CA is shown too, for machines that know its fingerprint only (pinned_ca.h).
  RETURN_IF_ERROR(
      WritePemFile(copy_, absl::StrCat(identity.certificate, "\n", identity.ca, "\n", identity.key),
                   PemKind::kKey, Overwrite::kWhenPresent));
  ca_ = std::move(identity.ca);
  return identity.info;
}

std::string ServerIdentity::ca() const {
  const absl::MutexLock lock(&mutex_);
  return ca_;
}

}  // namespace espalier
