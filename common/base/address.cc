#include "common/base/address.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

absl::Status BadAddress(absl::string_view address, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("address '", address, "' ", why,
                   "; write HOST:PORT, for example 127.0.0.1:7070, studio:7070 or [::1]:7070"));
}

bool IsIpv6(const std::string& host) {
  in6_addr buffer;
  return inet_pton(AF_INET6, host.c_str(), &buffer) == 1;
}

bool IsIpv4(const std::string& host) {
  in_addr buffer;
  return inet_pton(AF_INET, host.c_str(), &buffer) == 1;
}

bool IsLoopbackHost(const std::string& host) {
  return host == "localhost" || host == "::1" || (IsIpv4(host) && absl::StartsWith(host, "127."));
}

}  // namespace

std::string HostPort::ToString() const {
  return IsIpv6(host) ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(address, "has no port");
  absl::string_view host = address.substr(0, colon);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return BadAddress(address, "has no port between 0 and 65535");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    if (!IsIpv6(std::string(host))) return BadAddress(address, "is not a valid IPv6 address");
  } else if (host.empty()) {
    return BadAddress(address, "has no host");
  } else if (absl::StrContains(host, ':')) {
    return BadAddress(address, "is ambiguous: an IPv6 address goes in brackets");
  }
  return HostPort{.host = std::string(host), .port = static_cast<uint16_t>(port)};
}

bool IsIpAddress(absl::string_view host) {
  return IsIpv4(std::string(host)) || IsIpv6(std::string(host));
}

bool IsLoopback(absl::string_view address) {
  if (IsLoopbackHost(std::string(address))) return true;
  const absl::StatusOr<HostPort> parsed = ParseAddress(address);
  return parsed.ok() && IsLoopbackHost(parsed->host);
}

}  // namespace espalier
