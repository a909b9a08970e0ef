// The one table of Open MPI parameters: what the launcher gives to mpirun, what a worker of a
// hand-typed mpirun sets for itself before MPI starts, and what every worker reads back. Versions
// 4.1 and 5.x (with 6.x) spell the options of mpirun itself differently; the difference ends here.
// Used by coordinator/agent, coordinator/launcher/mpirun.h, worker/launch_environment.h,
// worker/collective/mpi_collective.h and worker/collective/transport.h. Plain functions: any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct OpenMpiSettings {
  // TCP links per peer.
  int32_t links = 4;
  // Networks for MPI as CIDR, comma separated ("10.77.0.0/24"); empty: Open MPI's choice.
  std::string networks;
  // Bytes of kernel socket buffer each way; 0: the system's default.
  int32_t socket_buffer_bytes = 0;
};

struct OpenMpiParameter {
  std::string name;
  std::string value;
  friend bool operator==(const OpenMpiParameter&, const OpenMpiParameter&) = default;
};

// Parameters of the transport; the same names in all versions.
std::vector<OpenMpiParameter> TransportParameters(const OpenMpiSettings& settings);

enum class OpenMpiVersion {
  kFour,
  kFive,
  kSix,  // spells everything as 5 does
};

// From the output of `mpirun --version`. UNIMPLEMENTED for other implementations and versions.
absl::StatusOr<OpenMpiVersion> ParseOpenMpiVersion(absl::string_view text);

struct MpirunOptions {
  OpenMpiSettings transport;
  // Program that runs a command on another host; empty: mpirun's own choice (ssh).
  std::string remote_shell;
  // kAgents: the remote shell asks espalierd, so that nodes cannot start it, and knows hosts by
  // names that mean nothing to others.
  enum class Hosts { kMachines, kAgents, kBoth } hosts = Hosts::kMachines;
};

// What OpenMP's runtimes read when a worker is loaded: how often a thread that waits for others is
// to look before it sleeps (libgomp, on Linux), or for how many milliseconds (LLVM's libomp, on
// macOS); launch_environment.cc says why. A worker that is started without them has to load itself,
// and LibTorch, twice.
struct SpinBound {
  const char* variable;
  const char* value;
};
inline constexpr SpinBound kSpinBounds[] = {{"GOMP_SPINCOUNT", "10000"}, {"KMP_BLOCKTIME", "1"}};

// Arguments of mpirun that precede the first program.
std::vector<std::string> MpirunArguments(const MpirunOptions& options, OpenMpiVersion version);

// Name of the environment variable that sets a parameter for a process that mpirun did not give it
// to ("OMPI_MCA_btl_tcp_links").
std::string OpenMpiVariable(absl::string_view parameter);

// What mpirun needs in its environment when root runs it.
std::vector<std::string> RootEnvironment();

}  // namespace espalier
