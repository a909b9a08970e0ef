#include "common/rpc/pinned_ca.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/rpc/certificate.h"
#include "common/rpc/probe.h"

namespace espalier {
namespace {

constexpr size_t kHexDigits = 64;

absl::Status NotTrusted(const PinnedServer& server, absl::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("the server at ", server.address,
                                                 " is not trusted, and was told nothing: ", why));
}

// The one with the fingerprint; else the error names what was shown instead.
absl::StatusOr<std::string> FindCa(const PinnedServer& server,
                                   const std::vector<std::string>& chain) {
  std::string shown = "none";
  for (const std::string& pem : chain) {
    const absl::StatusOr<CertificateInfo> info = DescribeCertificate(pem);
    if (!info.ok() || !info->is_ca) continue;
    if (SameSecret(info->fingerprint, server.ca_sha256)) return pem;
    shown = info->fingerprint;
  }
  return NotTrusted(
      server,
      absl::StrCat("its CA has the fingerprint ", shown, ", and ", server.ca_sha256,
                   " was given. Either the line was copied wrongly or is old (print a new one with "
                   "`espalier nodes add`), or another program answers at this address"));
}

}  // namespace

absl::Status CheckFingerprint(absl::string_view sha256) {
  const bool hex = std::all_of(sha256.begin(), sha256.end(), [](unsigned char c) {
    return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
  });
  if (hex && sha256.size() == kHexDigits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the CA's fingerprint is '", sha256, "'; allowed: ", kHexDigits,
                   " digits 0-9 and a-f, as `espalier nodes add` prints them"));
}

absl::StatusOr<std::string> FetchPinnedCa(const PinnedServer& server, Clock& clock,
                                          absl::Duration timeout) {
  RETURN_IF_ERROR(CheckFingerprint(server.ca_sha256));
  ASSIGN_OR_RETURN(const HostPort address, ParseAddress(server.address));
  const absl::Duration end = clock.Monotonic() + timeout;
  ASSIGN_OR_RETURN(const Socket socket, ConnectTcp(address, timeout));
  const absl::StatusOr<std::vector<std::string>> chain =
      FetchServerChain(socket, {}, end - clock.Monotonic());
  if (!chain.ok()) {
    return absl::Status(chain.status().code(),
                        absl::StrCat(server.address, " is no espalierd with TLS: ",
                                     chain.status().message(), "; check the address"));
  }
  ASSIGN_OR_RETURN(std::string ca, FindCa(server, *chain));
  absl::Status trusted =
      VerifyCertificate(chain->front(), ca, CertificateUse::kServer, clock.Now()).status();
  if (trusted.ok()) trusted = CheckServerName(chain->front(), address.host);
  if (!trusted.ok()) return NotTrusted(server, trusted.message());
  return ca;
}

}  // namespace espalier
