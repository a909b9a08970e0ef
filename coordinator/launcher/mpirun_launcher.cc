#include "coordinator/launcher/mpirun_launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "coordinator/launcher/log_limit.h"
#include "coordinator/launcher/mpirun.h"
#include "coordinator/launcher/network.h"
#include "coordinator/launcher/node_agents.h"

namespace espalier {
namespace {

constexpr absl::Duration kBetweenLogLooks = absl::Seconds(10);

std::string Describe(const ExitStatus& exit) {
  return exit.signal != 0 ? absl::StrCat("mpirun was killed by signal ", exit.signal)
                          : absl::StrCat("mpirun exited with status ", exit.code);
}

absl::Status MakeFolder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot create the folder ", folder.string(), ": ", error.message()));
}

void RemoveFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) LogWarning(absl::StrCat("leaves ", folder, " behind: ", error.message()));
}

}  // namespace

std::string GenerationLogPath(const std::string& state_dir, const GenerationKey& key) {
  return absl::StrFormat("%s/jobs/%s/logs/gen-%04d.log", state_dir, key.job.text(),
                         key.generation.value());
}

MpirunLauncher::MpirunLauncher(MpirunLauncherOptions options)
    : options_(std::move(options)),
      cluster_(*options_.cluster),
      networks_at_start_(options_.networks()) {}

std::string MpirunLauncher::LogPath(const GenerationKey& key) const {
  return GenerationLogPath(options_.state_dir, key);
}

std::string MpirunLauncher::TemporaryFolder(const GenerationKey& key) const {
  return absl::StrFormat("%s/jobs/%s/tmp/gen-%04d", options_.state_dir, key.job.text(),
                         key.generation.value());
}

// A machine alone needs no network, and may have lost the one that joined it to others.
absl::StatusOr<std::string> MpirunLauncher::Network(const LaunchRequest& request) const {
  std::vector<std::string> addresses;
  bool alone = true;
  for (const NodeName& name : request.nodes) {
    const v1::NodeSpec* node = FindNode(cluster_, name);
    if (node == nullptr) continue;
    addresses.push_back(node->address());
    alone = alone && IsOwnAddress(node->address(), networks_at_start_);
  }
  if (alone) return kLoopbackNetwork;
  if (!cluster_.launcher().network().empty()) return cluster_.launcher().network();
  return JoiningNetwork(addresses, options_.networks());
}

std::map<NodeName, NodeName> MpirunLauncher::AgentsOf(const std::vector<NodeName>& nodes) const {
  std::set<NodeName> attached;
  for (const NodeName& node : nodes) {
    if (options_.agents != nullptr && options_.agents->Attached(node)) attached.insert(node);
  }
  return SharedAgents(cluster_, nodes, attached);
}

// mpirun's; and what its remote-shell agent needs (node_agents.h).
std::vector<std::string> MpirunLauncher::Environment(
    const GenerationKey& key, const std::map<NodeName, NodeName>& agents) const {
  std::vector<std::string> environment =
      geteuid() == 0 ? RootEnvironment() : std::vector<std::string>();
  environment.push_back("TMPDIR=" + TemporaryFolder(key));
  if (agents.empty()) return environment;
  std::set<std::string> hosts;
  for (const auto& [node, agent] : agents) {
    hosts.insert(absl::StrCat(AgentHost(agent), "=", agent.text()));
  }
  const auto add = [&](absl::string_view name, const auto& value) {
    environment.push_back(absl::StrCat(name, "=", value));
  };
  add(kExecCoordinator, options_.state_dir);
  add(kExecJob, key.job.text());
  add(kExecGeneration, key.generation.value());
  add(kExecSecret, options_.agents->Admit(key));
  add(kExecNodes, absl::StrJoin(hosts, ","));
  add(kExecRemoteShell, cluster_.launcher().remote_shell());
  return environment;
}

absl::StatusOr<ProcessIdentity> MpirunLauncher::Prepare(const LaunchRequest& request) {
  const GenerationKey& key = request.key;
  ASSIGN_OR_RETURN(const OpenMpiVersion version, options_.version());
  ASSIGN_OR_RETURN(const std::string network, Network(request));
  // Else mpirun crashes (README.md). Ranks are its own then, and find espalierd by its socket.
  const bool with_agents = version == OpenMpiVersion::kFour || network != kLoopbackNetwork ||
                           !OnlyLoopbackIsUp(options_.networks());
  std::vector<NodeName> reached = request.nodes;
  if (version == OpenMpiVersion::kSix) {  // else it waits for ever
    std::erase_if(reached, [&](const NodeName& name) {
      const v1::NodeSpec* node = FindNode(cluster_, name);
      return node != nullptr && IsOwnAddress(node->address(), networks_at_start_);
    });
  }
  const auto agents = with_agents ? AgentsOf(reached) : std::map<NodeName, NodeName>();
  ASSIGN_OR_RETURN(std::vector<std::string> command,
                   MpirunCommand({.cluster = &cluster_,
                                  .coordinator = with_agents ? coordinator_ : options_.state_dir,
                                  .default_worker = options_.default_worker,
                                  .network = network,
                                  .version = version,
                                  .agents = agents,
                                  .agent_program = options_.agent_program},
                                 request));
  const std::string log = LogPath(key);
  RETURN_IF_ERROR(MakeFolder(std::filesystem::path(log).parent_path()));
  // What an espalierd left there that was killed before it had journaled the generation.
  RemoveFolder(TemporaryFolder(key));
  RETURN_IF_ERROR(MakeFolder(TemporaryFolder(key)));
  const absl::Status old = RemoveOldLogs(std::filesystem::path(log).parent_path(), options_.logs);
  if (!old.ok()) LogWarning(std::string(old.message()));
  ASSIGN_OR_RETURN(
      GatedProcess process,
      GatedProcess::Spawn(
          {.argv = std::move(command), .environment = Environment(key, agents), .log_path = log}));
  Entry& entry = entries_[key];
  entry = {.stage = Stage::kHeld, .leader = process.identity(), .own_child = true};
  entry.nodes = request.nodes;
  entry.agent_of = agents;
  for (const auto& [node, agent] : agents) {
    entry.with_agents.insert(node);
    entry.agents.emplace(agent, AgentWait());
  }
  entry.gate.emplace(std::move(process));
  return entry.leader;
}

void MpirunLauncher::Release(const GenerationKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.stage != Stage::kHeld) return;
  found->second.gate->Release();
  found->second.gate.reset();
  found->second.stage = Stage::kRunning;
}

void MpirunLauncher::Adopt(const GenerationKey& key, const ProcessIdentity& process,
                           AdoptedNodes nodes) {
  Entry& entry = entries_[key];
  entry = {.stage = Stage::kRunning, .leader = process, .adopted = true};
  entry.nodes = std::move(nodes.nodes);
  if (IsAlive(process)) entry.log_before = LogBytes(LogPath(key));
  if (options_.agents == nullptr) return;
  options_.agents->Admit(key);
  entry.with_agents = std::move(nodes.with_agents);
}

void MpirunLauncher::NoteNode(const v1::NodeSpec& node) {
  for (v1::NodeSpec& known : *cluster_.mutable_nodes()) {
    if (known.name() != node.name()) continue;
    known = node;
    return;
  }
  *cluster_.add_nodes() = node;
}

bool MpirunLauncher::IsHere(const v1::NodeSpec& node, Entry& entry) const {
  if (!entry.networks) entry.networks = options_.networks();
  // An address that was lost meanwhile is still this machine's.
  return IsOwnAddress(node.address(), *entry.networks) ||
         IsOwnAddress(node.address(), networks_at_start_);
}

void MpirunLauncher::NoteWorker(const GenerationKey& key, const WorkerProcess& worker) {
  const auto found = entries_.find(key);
  const v1::NodeSpec* node = FindNode(cluster_, worker.node);
  if (found == entries_.end() || node == nullptr) return;
  // An agent finds those of its node by itself; those of this machine are in mpirun's session.
  if (found->second.with_agents.count(worker.node) > 0 || IsHere(*node, found->second)) return;
  std::vector<int64_t>& pids = found->second.remote_pids[worker.node];
  if (std::find(pids.begin(), pids.end(), worker.pid) == pids.end()) pids.push_back(worker.pid);
}

void MpirunLauncher::End(const GenerationKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    unknown_.push_back({key, "nothing of it was running", {}});
    return;
  }
  found->second.end_wanted = true;
  if (found->second.stage == Stage::kHeld) {
    found->second.gate.reset();  // it sees the end of the pipe and exits
    found->second.stage = Stage::kRunning;
  }
}

std::vector<LaunchEnded> MpirunLauncher::Poll(absl::Duration now) {
  std::vector<LaunchEnded> ended = std::exchange(unknown_, {});
  if (now >= next_log_look_) {
    next_log_look_ = now + kBetweenLogLooks;
    for (const auto& [key, entry] : entries_) {
      const absl::Status shortened = ShortenLog(LogPath(key), options_.logs);
      if (!shortened.ok()) LogWarning(std::string(shortened.message()));
    }
  }
  for (auto it = entries_.begin(); it != entries_.end();) {
    auto& [key, entry] = *it;
    if (entry.stage == Stage::kRunning) PollLeader(key, entry, now);
    if (entry.stage != Stage::kSweeping || !SweepDone(key, entry, now)) {
      ++it;
      continue;
    }
    ended.push_back({key,
                     entry.reason,
                     entry.culprit,
                     {entry.unconfirmed.begin(), entry.unconfirmed.end()},
                     entry.exit_status == kBadInputStatus});
    if (options_.agents != nullptr) options_.agents->Forget(key);
    RemoveFolder(TemporaryFolder(key));
    it = entries_.erase(it);
  }
  return ended;
}

void MpirunLauncher::PollLeader(const GenerationKey& key, Entry& entry, absl::Duration now) {
  if (entry.own_child) {
    absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(entry.leader.pid);
    if (!exit.ok() || exit->has_value()) {
      const ExitStatus status = exit.ok() ? **exit : ExitStatus{};
      if (exit.ok() && status.signal == 0) entry.exit_status = status.code;
      entry.reason = Describe(status);
      return StartSweep(key, entry, now);
    }
  } else if (!IsAlive(entry.leader)) {
    entry.reason = "mpirun has ended";
    return StartSweep(key, entry, now);
  }
  if (!entry.end_wanted) return;
  if (!entry.kill_at) {
    entry.kill_at = now + options_.grace;
    kill(static_cast<pid_t>(entry.leader.pid), SIGTERM);
  } else if (now >= *entry.kill_at) {
    SignalSession(entry.leader, SIGKILL);
  }
}

// Of the ranks in order; empty where no agent is.
std::vector<std::string> MpirunLauncher::AgentHosts(const Entry& entry) {
  std::vector<std::string> hosts;
  for (const NodeName& node : entry.nodes) {
    const auto agent = entry.agent_of.find(node);
    hosts.push_back(agent == entry.agent_of.end() ? "" : AgentHost(agent->second));
  }
  return hosts;
}

void MpirunLauncher::StartSweep(const GenerationKey& key, Entry& entry, absl::Duration now) {
  // Those that have not come back yet are waited for like others that are away.
  if (entry.adopted) entry.agent_of = SharedAgents(cluster_, entry.nodes, entry.with_agents);
  const LastWords last_words = ReadLastWords(LogPath(key), entry.log_before);
  // How an mpirun exited that was taken over nobody knows; perhaps well.
  const bool matter = entry.adopted ? last_words.tells_of_end : entry.exit_status != 0;
  if (matter && !last_words.text.empty()) {
    absl::StrAppend(&entry.reason, ": ", last_words.text);
    entry.culprit = last_words.culprit;
    if (!entry.culprit) entry.culprit = RankOfLostDaemon(last_words.text, AgentHosts(entry));
    // Who exits otherwise may only have followed another.
    const bool bad_input = entry.exit_status == kBadInputStatus;
    if (bad_input && !entry.culprit) entry.culprit = last_words.first_exit;
  }
  entry.stage = Stage::kSweeping;
  entry.sweep_until = now + options_.remote_limit;
  entry.give_up_at = now + kConfirmLimit;
  for (const auto& [node, agent] : entry.agent_of) {
    entry.agents.emplace(agent, AgentWait());
    entry.remote_pids.erase(node);
  }
  if (entry.exit_status != 0) StartRemoteKills(key, entry);
}

void MpirunLauncher::StartRemoteKills(const GenerationKey& key, Entry& entry) {
  for (const NodeName& name : entry.nodes) {
    const v1::NodeSpec* node = FindNode(cluster_, name);
    const bool here = node != nullptr && IsHere(*node, entry);
    // Who has not introduced itself to this espalierd may have done so to an earlier one.
    if (!here && entry.agent_of.count(name) == 0) entry.unconfirmed.insert(name);
  }
  for (const auto& [name, pids] : entry.remote_pids) {
    const v1::NodeSpec& node = *FindNode(cluster_, name);
    absl::StatusOr<GatedProcess> process = GatedProcess::Spawn(
        {.argv = RemoteKillCommand(cluster_, node, key, pids), .log_path = LogPath(key)});
    if (!process.ok()) {
      absl::StrAppend(&entry.reason, "; stray workers on ", name.text(),
                      " could not be ended: ", process.status().message());
      continue;
    }
    process->Release();
    entry.remote_kills.emplace(name, process->identity());
  }
}

// The remote shell exits with the status of what it ran there; its own is 255.
void MpirunLauncher::PollRemoteKills(Entry& entry, bool late) {
  for (auto kill = entry.remote_kills.begin(); kill != entry.remote_kills.end();) {
    if (late) SignalSession(kill->second, SIGKILL);
    const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(kill->second.pid);
    if (exit.ok() && !exit->has_value()) {
      ++kill;
      continue;
    }
    const bool done = exit.ok() && (*exit)->code == 0 && (*exit)->signal == 0;
    if (done) entry.unconfirmed.erase(kill->first);
    kill = entry.remote_kills.erase(kill);
  }
}

void MpirunLauncher::NoteUnconfirmed(Entry& entry, const NodeName& agent) {
  for (const auto& [node, its_agent] : entry.agent_of) {
    if (its_agent == agent) entry.unconfirmed.insert(node);
  }
}

// It says that nothing is left on its node; or it is away, and ends the generation when it comes
// back; or it hangs, which the reason tells.
bool MpirunLauncher::AgentDone(const GenerationKey& key, const NodeName& agent, AgentWait& wait,
                               Entry& entry, absl::Duration now) {
  switch (options_.agents->End(key, agent)) {
    case NodeAgents::Ending::kGone:
      return true;
    case NodeAgents::Ending::kUnderWay:
      wait.away_since.reset();
      if (!wait.told_at) wait.told_at = now;
      if (now - *wait.told_at < kConfirmLimit) return false;
      absl::StrAppend(&entry.reason, "; the agent of node ", agent.text(),
                      " has not confirmed the end within ", absl::FormatDuration(kConfirmLimit),
                      ", so processes may be left there: look at them, or restart the agent");
      break;
    case NodeAgents::Ending::kAway:
      if (!wait.away_since) wait.away_since = now;
      if (now - *wait.away_since < options_.remote_limit) return false;
      break;
  }
  if (entry.exit_status != 0) NoteUnconfirmed(entry, agent);
  return true;
}

bool MpirunLauncher::AgentsDone(const GenerationKey& key, Entry& entry, absl::Duration now) {
  for (auto agent = entry.agents.begin(); agent != entry.agents.end();) {
    const bool done = AgentDone(key, agent->first, agent->second, entry, now);
    agent = done ? entry.agents.erase(agent) : std::next(agent);
  }
  return entry.agents.empty();
}

// In the kernel, say, waiting for a disk or a device that does not answer. Their leases are waited
// for, as elsewhere.
void MpirunLauncher::GiveUpHere(Entry& entry, int processes) {
  absl::StrAppend(&entry.reason, "; ", processes, processes == 1 ? " process" : " processes",
                  " of it on this machine did not end within ", absl::FormatDuration(kConfirmLimit),
                  " of SIGKILL: `ps -Ao pid,pgid,stat,args` shows them, from ", entry.leader.pid);
  for (const NodeName& name : entry.nodes) {
    const v1::NodeSpec* node = FindNode(cluster_, name);
    const bool here = node != nullptr && IsHere(*node, entry);
    if (here && entry.agent_of.count(name) == 0) entry.unconfirmed.insert(name);
  }
}

bool MpirunLauncher::SweepDone(const GenerationKey& key, Entry& entry, absl::Duration now) {
  int left = options_.signal_session(entry.leader, SIGKILL);
  if (left > 0 && now >= *entry.give_up_at) {
    if (!std::exchange(entry.gave_up, true)) GiveUpHere(entry, left);
    left = 0;
  }
  const bool late = now >= *entry.sweep_until;
  PollRemoteKills(entry, late);
  const bool agents_done = AgentsDone(key, entry, now);
  return agents_done && left == 0 && entry.remote_kills.empty();
}

}  // namespace espalier
