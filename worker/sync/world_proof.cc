#include "worker/sync/world_proof.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "worker/sync/together.h"

namespace espalier {
namespace {

constexpr int kNonceBytes = 32;
using Hex = std::array<char, 2 * kNonceBytes>;  // a nonce or a SHA-256, in hex

Hex ToHex(absl::string_view text) {
  Hex hex{};
  std::copy_n(text.begin(), std::min(text.size(), hex.size()), hex.begin());
  return hex;
}

}  // namespace

absl::Status ProveWorld(Collective& collective, absl::string_view secret) {
  ASSIGN_OR_RETURN(const std::vector<Hex> nonces,
                   GatherValues(collective, ToHex(RandomHex(kNonceBytes))));
  std::string all;
  for (const Hex& nonce : nonces) all.append(nonce.data(), nonce.size());
  const auto proof_of = [&](int64_t rank) {
    return ToHex(HmacSha256Hex(secret, absl::StrCat(all, "/", rank)));
  };
  ASSIGN_OR_RETURN(const std::vector<Hex> proofs,
                   GatherValues(collective, proof_of(collective.rank().value())));
  for (size_t rank = 0; rank < proofs.size(); ++rank) {
    if (proofs[rank] == proof_of(static_cast<int64_t>(rank))) continue;
    return absl::AbortedError(absl::StrCat(
        "rank ", rank, " does not know the secret that espalierd gave to rank ",
        collective.rank().value(),
        ": it was welcomed by another espalierd, or something else answers on the workers' "
        "network in its place; let only the nodes reach that network (launcher.network)"));
  }
  return absl::OkStatus();
}

}  // namespace espalier
