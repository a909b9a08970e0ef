#include "coordinator/service/enrolment.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/certificate.h"
#include "common/rpc/pem_file.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

constexpr char kByHand[] =
    "make certificates by hand with `espalier pki issue NAME --role worker` where the CA is, and "
    "copy them";

std::string KeyBeside(const std::string& ca_path) {
  return std::filesystem::path(ca_path).replace_extension(".key").string();
}

}  // namespace

absl::StatusOr<PemPair> Enrolment::Ca() const {
  if (options_.identity == nullptr) {
    return absl::FailedPreconditionError(
        "this espalierd has no TLS, so that machines cannot join it: agents of its own machine "
        "need no certificate (espalier-agent run --coordinator STATE_FOLDER --node NAME); for "
        "others, make certificates with `espalier pki` and name them under tls in the cluster "
        "file");
  }
  const std::string path = KeyBeside(options_.ca_path);
  absl::StatusOr<std::string> key = ReadPemFile(path);
  if (!key.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "espalierd needs the key of its CA to make certificates, and ", key.status().message(),
        "; put there the ca.key that `espalier pki init` made "
        "(it may go again when all have joined), or ",
        kByHand));
  }
  return PemPair{.certificate = options_.identity->ca(), .key = *std::move(key)};
}

absl::Status Enrolment::Check() const {
  ASSIGN_OR_RETURN(const PemPair ca, Ca());
  const absl::Status fits = CheckCa(ca);
  if (fits.ok()) return fits;
  return absl::FailedPreconditionError(
      absl::StrCat("espalierd cannot make certificates with ", KeyBeside(options_.ca_path), ": ",
                   fits.message(), "; put the key of ", options_.ca_path, " there, or ", kByHand));
}

absl::StatusOr<Enrolment::Place> Enrolment::Describe() const {
  RETURN_IF_ERROR(Check());
  ASSIGN_OR_RETURN(CertificateInfo info, DescribeCertificate(options_.identity->ca()));
  const absl::MutexLock lock(&mutex_);
  if (coordinator_.empty()) return absl::UnavailableError("espalierd is starting; try again");
  return Place{.coordinator = coordinator_, .ca_sha256 = std::move(info.fingerprint)};
}

void Enrolment::Announce(std::string coordinator) {
  const absl::MutexLock lock(&mutex_);
  coordinator_ = std::move(coordinator);
}

absl::StatusOr<Enrolment::Certificate> Enrolment::Certify(const NodeName& node,
                                                          absl::string_view request) const {
  RETURN_IF_ERROR(Check());
  ASSIGN_OR_RETURN(const PemPair ca, Ca());
  ASSIGN_OR_RETURN(const CertificateInfo ca_info, DescribeCertificate(ca.certificate));
  const absl::Time now = clock_.Now();
  ASSIGN_OR_RETURN(std::string pem,
                   CertifyKeyRequest(ca,
                                     {.name = node.text(),
                                      .role = Role::kWorker,
                                      .not_before = std::max(now - kClockApart, ca_info.not_before),
                                      .not_after = now + kNodeCertificateLife},
                                     request));
  ASSIGN_OR_RETURN(CertificateInfo info, DescribeCertificate(pem));
  return Certificate{.pem = std::move(pem),
                     .fingerprint = std::move(info.fingerprint),
                     .serial = std::move(info.serial)};
}

absl::Status CheckClock(double unix_seconds, absl::Time now) {
  const double ahead = unix_seconds - absl::ToDoubleSeconds(now - absl::UnixEpoch());
  if (std::abs(ahead) < absl::ToDoubleSeconds(kClockApart)) return absl::OkStatus();
  const absl::Duration apart = absl::Floor(absl::Seconds(std::abs(ahead) + 30), absl::Minutes(1));
  return absl::FailedPreconditionError(absl::StrCat(
      "this machine's clock is ", absl::FormatDuration(apart), ahead > 0 ? " ahead of" : " behind",
      " espalierd's, and allowed is less than ", absl::FormatDuration(kClockApart),
      ", or its certificate would not be valid; set the clocks (both by NTP) and run the same "
      "line again: the token was not used up"));
}

}  // namespace espalier
