// mpirun as a program: which Open MPI it belongs to, the command line of a generation, the one that
// ends stray workers on another machine, and what it says last. Ranks are mapped to nodes one by
// one, in order, so that it is explicit which rank runs on which node. Used by MpirunLauncher, and
// by espalierd when it starts. Any thread; ProbeOpenMpi and RememberingProbe wait for the program,
// at most for their bounds.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/open_mpi.h"
#include "coordinator/launcher/launcher.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct CommandContext {
  const v1::ClusterSpec* cluster = nullptr;
  // HOST:PORT, or the state folder, by which workers reach espalierd.
  std::string coordinator;
  // espalier-worker where neither the node nor the launcher names one.
  std::string default_worker;
  // Networks for MPI as CIDR, comma separated.
  std::string network;
  OpenMpiVersion version = OpenMpiVersion::kFour;
  // Nodes that are reached through agents, and the node whose agent that is; and espalier-agent,
  // which mpirun calls for it.
  std::map<NodeName, NodeName> agents;
  std::string agent_program;
};

// espalier-worker of that node, where the node or the launcher names one; else empty.
const std::string& NamedWorker(const v1::ClusterSpec& cluster, const v1::NodeSpec& node);

// Which of the request's nodes start their daemons through agents, of those that have one attached.
// Nodes of one address are one machine, and share the first one's: a rank's share of the machine
// follows from how many ranks Open MPI's daemon there has.
std::map<NodeName, NodeName> SharedAgents(const v1::ClusterSpec& cluster,
                                          const std::vector<NodeName>& nodes,
                                          const std::set<NodeName>& attached);

// The name under which mpirun knows the machine of a node with an agent. It means nothing to any
// other program, so that mpirun does not take it for its own machine.
std::string AgentHost(const NodeName& node);

// INVALID_ARGUMENT: a node that is not in the cluster file; loopback nodes mixed with others; nodes
// with worker programs at different places, under Open MPI 5; an agent's program at a path with a
// space in it.
absl::StatusOr<std::vector<std::string>> MpirunCommand(const CommandContext& context,
                                                       const LaunchRequest& request);

// Kills those of `pids` on a node that still belong to the generation (their command line says so;
// a pid alone may be somebody else's by now), and the Open MPI daemon above them.
std::vector<std::string> RemoteKillCommand(const v1::ClusterSpec& cluster, const v1::NodeSpec& node,
                                           const GenerationKey& key,
                                           const std::vector<int64_t>& pids);

const v1::NodeSpec* FindNode(const v1::ClusterSpec& cluster, const NodeName& name);

struct ProbeOptions {
  // Path or name in PATH.
  std::string mpirun;
  // A file that may be written; removed again.
  std::string scratch;
  // macOS looks at a program before it starts it for the first time, which has taken 40 s.
  absl::Duration limit = absl::Seconds(60);
  // Of RememberingProbe, when it asks again: who launches waits for it.
  absl::Duration later_limit = absl::Seconds(5);
};

// NOT_FOUND: no such program; DEADLINE_EXCEEDED: it does not end; UNIMPLEMENTED: not an Open MPI
// that Espalier knows.
absl::StatusOr<OpenMpiVersion> ProbeOpenMpi(const ProbeOptions& options, Clock& clock);

// Asks at once, and says what came of it whenever it is called; asks again then while there has
// been no answer in time. `clock` outlives it.
std::function<absl::StatusOr<OpenMpiVersion>()> RememberingProbe(ProbeOptions options,
                                                                 Clock& clock);

// WorkerExit::kBadInput of espalier-worker, which mpirun passes on.
inline constexpr int kBadInputStatus = 2;

struct LastWords {
  // At most 300 characters; empty when there are none. Always UTF-8.
  std::string text;
  // The rank that mpirun names.
  std::optional<Rank> culprit;
  // Not only the progress and the warnings of workers, which say nothing of an end.
  bool tells_of_end = false;
  // The rank that mpirun says exited first with a status that is not 0.
  std::optional<Rank> first_exit = {};
};

// The rank on the host whose daemon mpirun says it has lost; absent: it says no such thing, or
// several ranks are there. `hosts`: of the ranks in order, as mpirun knows them.
std::optional<Rank> RankOfLostDaemon(absl::string_view text, const std::vector<std::string>& hosts);

// What the log says last that matters: "rank 1 exited on signal 9 (Killed)" where mpirun names the
// process that died first (its own words give a process number, and a host that may be no name of
// the node), or else the last line of what tells most: mpirun's remote-shell agent, then any line,
// then mpirun's advice (what it prints between rules), then warnings of workers, then their
// progress. Only what follows the first `from` bytes counts, unless the log is shorter by now.
LastWords ReadLastWords(const std::string& log_path, int64_t from = 0);

}  // namespace espalier
