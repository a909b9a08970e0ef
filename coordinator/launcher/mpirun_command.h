// The command lines of a generation: mpirun with one app context per rank, so that it is explicit
// which rank runs on which node; and the one that ends stray workers on another machine. Used by
// MpirunLauncher. Pure functions: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/open_mpi.h"
#include "coordinator/launcher/launcher.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct CommandContext {
  const v1::ClusterSpec* cluster = nullptr;
  // HOST:PORT under which workers reach espalierd.
  std::string coordinator;
  // espalier-worker where neither the node nor the launcher names one.
  std::string default_worker;
  // Networks for MPI as CIDR, comma separated.
  std::string network;
  OpenMpiVersion version = OpenMpiVersion::kFour;
};

// INVALID_ARGUMENT: a node that is not in the cluster file; loopback nodes mixed with others.
absl::StatusOr<std::vector<std::string>> MpirunCommand(const CommandContext& context,
                                                       const LaunchRequest& request);

// Kills those of `pids` on a node that still belong to the generation (their command line says so;
// a pid alone may be somebody else's by now), and the Open MPI daemon above them.
std::vector<std::string> RemoteKillCommand(const v1::ClusterSpec& cluster, const v1::NodeSpec& node,
                                           const GenerationKey& key,
                                           const std::vector<int64_t>& pids);

const v1::NodeSpec* FindNode(const v1::ClusterSpec& cluster, const NodeName& name);

}  // namespace espalier
