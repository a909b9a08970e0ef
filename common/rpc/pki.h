// A small certificate authority: one CA, and certificates that carry a name, a role and the
// addresses they may serve under. EC P-256 keys. Used by coordinator/ and tests.
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

// UNAUTHENTICATED when `ca` is no CA or the key is not its own.
absl::Status CheckCa(const PemPair& ca);

// A key that never leaves its machine, and the PKCS #10 request to have it certified under a name.
struct KeyRequest {
  std::string request;
  std::string key;
};
absl::StatusOr<KeyRequest> MakeKeyRequest(const std::string& name);
// The certificate for the key of a request, in PEM form; all else is as `certificate` says,
// whatever the request says. INVALID_ARGUMENT when it is malformed, not signed by its key, or for a
// key that is not EC P-256; else as IssueCertificate.
absl::StatusOr<std::string> CertifyKeyRequest(const PemPair& ca,
                                              const CertificateRequest& certificate,
                                              absl::string_view request);

// Writes FOLDER/NAME.crt and FOLDER/NAME.key (0600), both or neither; makes the folder (0700) when
// absent.
absl::Status WritePair(const std::string& folder, const std::string& name, const PemPair& pair,
                       Overwrite overwrite);
// Reads FOLDER/ca.crt and FOLDER/ca.key; the error says how to make them.
absl::StatusOr<PemPair> ReadCa(const std::string& folder);

}  // namespace espalier
