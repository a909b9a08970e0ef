// Bare connections that tell why gRPC's fail: to a Unix socket, or by TCP with a TLS handshake that
// fetches the server's certificates without judging them.
// Used by channel.cc, diagnose.cc and pinned_ca.cc only. Any thread; every wait is bounded by a
// timeout.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"

namespace espalier {

// Owns a connected, non-blocking socket.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// What an errno of connect() to another machine means, and what to do. `on_mac`: this machine is
// one.
std::string WhyUnreachable(const HostPort& address, int error, bool on_mac);

// UNAVAILABLE says why not: no such host, nothing listens there, no answer in time.
absl::StatusOr<Socket> ConnectTcp(const HostPort& address, absl::Duration timeout);

// Connects to a Unix socket and hangs up. 0 or errno.
int TryUnixSocket(const std::string& path);

// PEM texts; empty: no client certificate.
struct ProbeIdentity {
  std::string certificate;
  std::string key;
  std::string ca;
};

// The certificates the server shows, its own first, as PEM; never empty. UNAVAILABLE: no answer in
// time. FAILED_PRECONDITION: the other end does not speak TLS.
absl::StatusOr<std::vector<std::string>> FetchServerChain(const Socket& socket,
                                                          const ProbeIdentity& own,
                                                          absl::Duration timeout);

}  // namespace espalier
