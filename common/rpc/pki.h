// A small certificate authority: one CA, and certificates that carry a name, a role and the
// addresses they may serve under. EC P-256 keys. Used by `espalier pki` and tests.
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/pem_file.h"
#include "common/rpc/role.h"

namespace espalier {

struct PemPair {
  std::string certificate;
  std::string key;
};

struct CaRequest {
  std::string name;  // Letters, digits, ' ', '-', '_' and '.'; at most 64.
  absl::Time not_before;
  absl::Time not_after;
};
absl::StatusOr<PemPair> MakeCa(const CaRequest& request);

struct CertificateRequest {
  std::string name;  // As for a CA, without spaces: it is also the name of the files.
  Role role = Role::kViewer;
  // IP addresses and host names. A coordinator needs at least one: clients compare it with the
  // address they dial.
  std::vector<std::string> addresses;
  absl::Time not_before;
  absl::Time not_after;
};
// INVALID_ARGUMENT for a bad request; UNAUTHENTICATED when `ca` is no CA, not of its key, or ends
// before the certificate begins. The certificate never outlives the CA: its end is cut to the CA's.
absl::StatusOr<PemPair> IssueCertificate(const PemPair& ca, const CertificateRequest& request);

// Writes FOLDER/NAME.crt and FOLDER/NAME.key (0600), both or neither; makes the folder (0700) when
// absent.
absl::Status WritePair(const std::string& folder, const std::string& name, const PemPair& pair,
                       Overwrite overwrite);
// Reads FOLDER/ca.crt and FOLDER/ca.key; the error says how to make them.
absl::StatusOr<PemPair> ReadCa(const std::string& folder);

}  // namespace espalier
