#include "coordinator/launcher/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr uint32_t kLoopback = 127;

absl::StatusOr<uint32_t> ParseIpv4(const std::string& address) {
  in_addr parsed = {};
  if (inet_pton(AF_INET, address.c_str(), &parsed) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("node address '", address, "' is not an IPv4 address such as 10.0.0.1"));
  }
  return ntohl(parsed.s_addr);
}

std::string FormatIpv4(uint32_t address) {
  return absl::StrCat(address >> 24, ".", (address >> 16) & 255, ".", (address >> 8) & 255, ".",
                      address & 255);
}

uint32_t Mask(int prefix_bits) { return prefix_bits == 0 ? 0 : ~uint32_t{0} << (32 - prefix_bits); }

int PrefixBits(uint32_t mask) {
  int bits = 0;
  while (bits < 32 && (mask & (uint32_t{1} << (31 - bits)))) ++bits;
  return bits;
}

// 127.0.0.1, 127.0.0.2 ... are one machine.
bool AllLoopback(const std::vector<std::string>& addresses) {
  return std::all_of(addresses.begin(), addresses.end(), IsLoopbackAddress);
}

}  // namespace

std::vector<LocalNetwork> LocalNetworks() {
  std::vector<LocalNetwork> networks;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return networks;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr) continue;
    if (entry->ifa_addr->sa_family != AF_INET || !(entry->ifa_flags & IFF_UP)) continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(entry->ifa_netmask);
    networks.push_back(
        {FormatIpv4(ntohl(address->sin_addr.s_addr)), PrefixBits(ntohl(mask->sin_addr.s_addr))});
  }
  freeifaddrs(list);
  return networks;
}

absl::StatusOr<std::string> JoiningNetwork(const std::vector<std::string>& addresses,
                                           const std::vector<LocalNetwork>& networks) {
  std::vector<uint32_t> parsed;
  for (const std::string& address : addresses) {
    ASSIGN_OR_RETURN(const uint32_t one, ParseIpv4(address));
    parsed.push_back(one);
  }
  if (AllLoopback(addresses)) return std::string(kLoopbackNetwork);
  if (std::any_of(addresses.begin(), addresses.end(), IsLoopbackAddress)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the nodes have the addresses ", absl::StrJoin(addresses, ", "),
        ": a loopback address cannot be reached from the others; give every node the address of "
        "the network that joins them, in the cluster file"));
  }
  std::optional<std::pair<int, uint32_t>> best;
  for (const LocalNetwork& network : networks) {
    absl::StatusOr<uint32_t> own = ParseIpv4(network.address);
    if (!own.ok()) continue;
    const uint32_t mask = Mask(network.prefix_bits);
    const bool holds = std::all_of(parsed.begin(), parsed.end(),
                                   [&](uint32_t one) { return (one & mask) == (*own & mask); });
    if (holds && (!best || network.prefix_bits > best->first)) {
      best = {network.prefix_bits, *own & mask};
    }
  }
  if (best) return absl::StrCat(FormatIpv4(best->second), "/", best->first);
  return absl::NotFoundError(absl::StrCat(
      "no network of this machine holds all of the nodes ", absl::StrJoin(addresses, ", "),
      "; set launcher.network in the cluster file, for example \"10.77.0.0/24\""));
}

bool IsLoopbackAddress(const std::string& address) {
  absl::StatusOr<uint32_t> parsed = ParseIpv4(address);
  return parsed.ok() && *parsed >> 24 == kLoopback;
}

bool OnlyLoopbackIsUp(const std::vector<LocalNetwork>& networks) {
  return std::all_of(networks.begin(), networks.end(),
                     [](const LocalNetwork& one) { return IsLoopbackAddress(one.address); });
}

bool IsOwnAddress(const std::string& address, const std::vector<LocalNetwork>& networks) {
  if (IsLoopbackAddress(address)) return true;
  return std::any_of(networks.begin(), networks.end(),
                     [&](const LocalNetwork& network) { return network.address == address; });
}

}  // namespace espalier
