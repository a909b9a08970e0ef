// Which of this machine's networks joins a set of nodes, for MPI's interface choice: by address,
// never by interface or host name; and which addresses are its own. Used by mpirun.cc,
// mpirun_launcher.h, mpirun_launcher.cc and coordinator/service/job_folders.cc. Thread rule: any
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct LocalNetwork {
  std::string address;
  int prefix_bits = 0;
};

inline constexpr char kLoopbackNetwork[] = "127.0.0.0/8";

// The IPv4 networks of this machine's interfaces that are up.
std::vector<LocalNetwork> LocalNetworks();

// CIDR of the smallest of `networks` that holds every address ("10.77.0.0/24"); all loopback:
// kLoopbackNetwork. INVALID_ARGUMENT: not IPv4, or loopback beside others; NOT_FOUND: no network
// holds them all, launcher.network must say it.
absl::StatusOr<std::string> JoiningNetwork(const std::vector<std::string>& addresses,
                                           const std::vector<LocalNetwork>& networks);

bool IsLoopbackAddress(const std::string& address);
bool OnlyLoopbackIsUp(const std::vector<LocalNetwork>& networks);
// Whether `address` belongs to this machine.
bool IsOwnAddress(const std::string& address, const std::vector<LocalNetwork>& networks);

}  // namespace espalier
