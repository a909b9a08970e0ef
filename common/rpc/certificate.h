// What a certificate says, and whether it is to be believed, in sentences a person can act on.
// Used by common/rpc, coordinator/agent, coordinator/service and `espalier pki show`
// (coordinator/ctl). Pure functions of PEM text and `now`, except LoadTls, which reads files. Any
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rpc/pem_file.h"
#include "common/rpc/role.h"

namespace espalier {

struct CertificateInfo {
  std::string name;                    // Common name of the subject.
  std::string issuer;                  // Common name of the CA that signed it.
  std::optional<Role> role;            // From the SAN URI "espalier:role/NAME".
  std::vector<std::string> addresses;  // IP addresses and host names it may serve under.
  absl::Time not_before;
  absl::Time not_after;
  std::string serial;       // Hexadecimal.
  std::string fingerprint;  // SHA-256 of the certificate, hexadecimal.
  bool is_ca = false;
};

// INVALID_ARGUMENT when the text holds no PEM certificate.
absl::StatusOr<CertificateInfo> DescribeCertificate(absl::string_view pem);

enum class CertificateUse { kClient, kServer };

// Checks signature, period and purpose against one CA. UNAUTHENTICATED says what is wrong: expired
// since when, not valid yet, signed by which other CA, or not meant for this use.
absl::StatusOr<CertificateInfo> VerifyCertificate(absl::string_view pem, absl::string_view ca_pem,
                                                  CertificateUse use, absl::Time now);

// UNAUTHENTICATED, with the names it does carry, unless the certificate names `host` (an IP address
// or a host name, compared without case; "*." covers one label).
absl::Status CheckServerName(absl::string_view pem, absl::string_view host);

// The contents of TlsFiles.
struct TlsIdentity {
  std::string ca;
  std::string certificate;
  std::string key;
  CertificateInfo info;
};

// Reads the files and verifies the own certificate: of this CA, in its period, for this use, and
// of this key. UNAUTHENTICATED otherwise, naming the file.
absl::StatusOr<TlsIdentity> LoadTls(const TlsFiles& files, CertificateUse use, absl::Time now);

}  // namespace espalier
