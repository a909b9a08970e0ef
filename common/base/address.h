// "HOST:PORT" addresses, and whether one is loopback (where no credentials are needed). Used by
// common/config, common/rpc and coordinator/service for the addresses of nodes and servers. Pure
// functions: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct HostPort {
  std::string host;  // Without brackets.
  uint16_t port = 0;

  std::string ToString() const;  // An IPv6 host in brackets.
};

// Accepts "studio:7070", "10.0.0.1:7070" and "[::1]:7070". INVALID_ARGUMENT otherwise, with the
// value and the forms allowed.
absl::StatusOr<HostPort> ParseAddress(absl::string_view address);

// An IPv4 or IPv6 address in numbers, as opposed to a name.
bool IsIpAddress(absl::string_view host);

// True for 127.0.0.0/8, ::1 and "localhost", with or without a port; false for everything else,
// wildcards and malformed addresses included.
bool IsLoopback(absl::string_view address);

}  // namespace espalier
