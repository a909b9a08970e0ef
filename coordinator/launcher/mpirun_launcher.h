// MpirunLauncher: one detached mpirun per generation, in a session of its own that holds every
// local process of the generation, so that all of it can be found and ended, whoever started it.
// Used by coordinator/service/daemon.cc.
//
//          Prepare       Release          leader gone, or End and its grace
//   (none) --------> held -------> running --------------------------------> sweeping -> (reported)
//                   Adopt ------------^   End: SIGTERM, after the grace SIGKILL
//
// Sweeping: what is left of the session is killed; on other nodes through their agents or the
// remote shell, within a bound. Nodes where that is not confirmed by then are reported.
// Thread rule: as Launcher.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/platform/process.h"
#include "coordinator/launcher/launcher.h"
#include "coordinator/launcher/log_limit.h"
#include "coordinator/launcher/mpirun.h"
#include "coordinator/launcher/network.h"
#include "coordinator/launcher/node_agents.h"

namespace espalier {

struct MpirunLauncherOptions {
  // Looked at once.
  const v1::ClusterSpec* cluster = nullptr;
  // espalier-worker where the cluster file names none.
  std::string default_worker;
  // Outlives the launcher; null: every node is reached through the remote shell.
  NodeAgents* agents = nullptr;
  // espalier-agent, for mpirun.
  std::string agent_program;
  // Holds jobs/ID/logs and jobs/ID/tmp.
  std::string state_dir;
  // Asked at every launch (RememberingProbe); its error is the launch's.
  std::function<absl::StatusOr<OpenMpiVersion>()> version = [] { return OpenMpiVersion::kFour; };
  // Between SIGTERM and SIGKILL.
  absl::Duration grace = absl::Seconds(2);
  // Longest time for ending stray workers on a node that cannot be reached.
  absl::Duration remote_limit = absl::Seconds(5);
  LogLimits logs;
  // For tests, of processes that cannot be ended, and of machines without a network.
  std::function<int(const ProcessIdentity&, int)> signal_session = SignalSession;
  std::function<std::vector<LocalNetwork>()> networks = LocalNetworks;
};

class MpirunLauncher : public Launcher {
 public:
  explicit MpirunLauncher(MpirunLauncherOptions options);
  ~MpirunLauncher() override = default;  // generations go on, but for those at the gate

  // HOST:PORT, or the state folder, by which workers reach espalierd; before the first Prepare.
  void SetCoordinator(std::string address) { coordinator_ = std::move(address); }

  absl::StatusOr<ProcessIdentity> Prepare(const LaunchRequest& request) override;
  void Release(const GenerationKey& key) override;
  void Adopt(const GenerationKey& key, const ProcessIdentity& process, AdoptedNodes nodes) override;
  void NoteNode(const v1::NodeSpec& node) override;
  void NoteWorker(const GenerationKey& key, const WorkerProcess& worker) override;
  void End(const GenerationKey& key) override;
  std::vector<LaunchEnded> Poll(absl::Duration now) override;

 private:
  enum class Stage {
    // Waits at the gate.
    kHeld,
    // mpirun runs, as far as we know.
    kRunning,
    // mpirun is gone; the rest of the generation is being ended.
    kSweeping,
  };
  struct AgentWait {
    // Since when it is away, and since when it has been ending the generation.
    std::optional<absl::Duration> away_since;
    std::optional<absl::Duration> told_at;
  };
  struct Entry {
    Stage stage = Stage::kRunning;
    ProcessIdentity leader;
    std::optional<GatedProcess> gate;
    bool own_child = false;
    bool end_wanted = false;
    std::optional<absl::Duration> kill_at;
    std::optional<absl::Duration> sweep_until;
    // What hangs on this machine is given up then.
    std::optional<absl::Duration> give_up_at;
    bool gave_up = false;
    int exit_status = -1;  // of mpirun, where it left by itself and that is known
    std::string reason;
    std::optional<Rank> culprit;
    std::map<NodeName, std::vector<int64_t>> remote_pids;
    std::optional<std::vector<LocalNetwork>> networks;  // this machine's, as first asked for
    std::map<NodeName, ProcessIdentity> remote_kills;
    std::vector<NodeName> nodes;
    // Of these, who is known to have an agent.
    std::set<NodeName> with_agents;
    // The agent of each node that has one. Of a generation that was taken over it shows at the end,
    // when all of the cluster is known.
    std::map<NodeName, NodeName> agent_of;
    bool adopted = false;
    // Of a generation that ran when it was taken over: what its log held then, of which nothing is
    // the reason of its end.
    int64_t log_before = 0;
    // Agents that have to say that nothing is left there.
    std::map<NodeName, AgentWait> agents;
    std::set<NodeName> unconfirmed;
  };

  absl::StatusOr<std::string> Network(const LaunchRequest& request) const;
  std::string LogPath(const GenerationKey& key) const;
  std::string TemporaryFolder(const GenerationKey& key) const;  // TMPDIR of all of it
  // The agent of each node that is reached through one.
  std::map<NodeName, NodeName> AgentsOf(const std::vector<NodeName>& nodes) const;
  std::vector<std::string> Environment(const GenerationKey& key,
                                       const std::map<NodeName, NodeName>& agents) const;
  bool IsHere(const v1::NodeSpec& node, Entry& entry) const;
  void StartRemoteKills(const GenerationKey& key, Entry& entry);
  void PollRemoteKills(Entry& entry, bool late);
  void NoteUnconfirmed(Entry& entry, const NodeName& agent);
  void PollLeader(const GenerationKey& key, Entry& entry, absl::Duration now);
  static std::vector<std::string> AgentHosts(const Entry& entry);
  void StartSweep(const GenerationKey& key, Entry& entry, absl::Duration now);
  void GiveUpHere(Entry& entry, int processes);
  bool SweepDone(const GenerationKey& key, Entry& entry, absl::Duration now);
  // Whether nothing more is to be waited for from the agent.
  bool AgentDone(const GenerationKey& key, const NodeName& agent, AgentWait& wait, Entry& entry,
                 absl::Duration now);
  bool AgentsDone(const GenerationKey& key, Entry& entry, absl::Duration now);

  const MpirunLauncherOptions options_;
  v1::ClusterSpec cluster_;  // with the nodes that have joined
  // An address that was this machine's is so still when its cable is pulled.
  const std::vector<LocalNetwork> networks_at_start_;
  std::string coordinator_;
  std::map<GenerationKey, Entry> entries_;
  absl::Duration next_log_look_ = absl::ZeroDuration();
  std::vector<LaunchEnded> unknown_;  // asked to end, but not known here
};

// The log of a generation: STATE_DIR/jobs/ID/logs/gen-0001.log.
std::string GenerationLogPath(const std::string& state_dir, const GenerationKey& key);

}  // namespace espalier
