#include "coordinator/launcher/mpirun.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/platform/process.h"
#include "coordinator/launcher/network.h"

namespace espalier {
namespace {

std::string WorkerProgram(const CommandContext& context, const v1::NodeSpec& node) {
  const std::string& named = NamedWorker(*context.cluster, node);
  return named.empty() ? context.default_worker : named;
}

// What the job asks for first, then the node's; 0: the worker shares the node's cores by itself.
int32_t Threads(const v1::JobSpec& spec, const v1::NodeSpec& node) {
  return spec.launch().threads() > 0 ? spec.launch().threads() : node.threads();
}

std::string Device(const v1::JobSpec& spec, const v1::NodeSpec& node) {
  const std::string& asked = spec.launch().device();
  if (!asked.empty() && asked != "auto") return asked;
  return node.device().empty() ? "auto" : node.device();
}

using Nodes = std::vector<const v1::NodeSpec*>;

// The hosts of the ranks, as mpirun is told. It takes only 127.0.0.1 for itself, not the rest of
// the loopback network.
std::vector<std::string> Hosts(const CommandContext& context, const Nodes& nodes) {
  std::vector<std::string> hosts;
  for (const v1::NodeSpec* node : nodes) {
    const auto agent = context.agents.find(NodeName(node->name()));
    if (agent != context.agents.end()) {
      hosts.push_back(AgentHost(agent->second));
    } else {
      const bool here = context.network == kLoopbackNetwork || IsLoopbackAddress(node->address());
      hosts.push_back(here ? "127.0.0.1" : node->address());
    }
  }
  return hosts;
}

// The program of a node's rank, or of all ranks, and its arguments. What differs from node to node
// is given once for each rank, in order: a worker takes its own.
void AppendWorker(const CommandContext& context, const LaunchRequest& request, const Nodes& nodes,
                  std::vector<std::string>& command) {
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  const auto add_each = [&](const char* option, auto&& value_of) {
    for (const v1::NodeSpec* node : nodes) add({option, value_of(*node)});
  };
  add({WorkerProgram(context, *nodes.front())});
  add({"--coordinator", context.coordinator, "--job-id", request.key.job.text()});
  add({"--generation", absl::StrCat(request.key.generation.value())});
  add({"--rank-count", absl::StrCat(request.nodes.size())});
  add_each("--node", [](const v1::NodeSpec& node) { return node.name(); });
  const auto threads = [&](const v1::NodeSpec& node) {
    return absl::StrCat(Threads(request.spec, node));
  };
  const auto device = [&](const v1::NodeSpec& node) { return Device(request.spec, node); };
  const auto any = [&](auto&& is) {
    return std::any_of(nodes.begin(), nodes.end(), [&](auto* node) { return is(*node); });
  };
  if (any([&](const v1::NodeSpec& node) { return threads(node) != "0"; })) {
    add_each("--threads", threads);
  }
  if (any([&](const v1::NodeSpec& node) { return device(node) != "auto"; })) {
    add_each("--device", device);
  }
  const bool by_socket = absl::StrContains(context.coordinator, '/');  // which needs none
  if (!by_socket && any([](const v1::NodeSpec& node) { return node.has_tls(); })) {
    add_each("--tls-ca", [](const v1::NodeSpec& node) { return node.tls().ca(); });
    add_each("--tls-cert", [](const v1::NodeSpec& node) { return node.tls().certificate(); });
    add_each("--tls-key", [](const v1::NodeSpec& node) { return node.tls().key(); });
  }
}

// One application context for all ranks: mpirun of Open MPI 5.0, as distributions build it, dies of
// several.
void AppendTogether(const CommandContext& context, const LaunchRequest& request, const Nodes& nodes,
                    std::vector<std::string>& command) {
  const std::string hosts = absl::StrJoin(Hosts(context, nodes), ",");
  // Else ranks go to mpirun's own machine first, in whatever order hosts are named.
  const std::string ranks = absl::StrCat(nodes.size());
  command.insert(command.end(), {"--map-by", "seq", "-np", ranks, "--host", hosts});
  AppendWorker(context, request, nodes, command);
}

absl::Status AppendApart(const CommandContext& context, const LaunchRequest& request,
                         const Nodes& nodes, std::vector<std::string>& command) {
  if (context.version != OpenMpiVersion::kFour) {
    return absl::InvalidArgumentError(
        absl::StrCat("Open MPI 5 starts one program for all ranks, and the nodes of job ",
                     request.key.job.text(), " have theirs at different places; make ",
                     WorkerProgram(context, *nodes.front()),
                     " a link to the worker on each of them, and name that in the cluster file"));
  }
  const std::vector<std::string> hosts = Hosts(context, nodes);
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (rank > 0) command.push_back(":");
    // A slot for every rank there, or mpirun would call the host full after the first.
    const auto slots = std::count(hosts.begin(), hosts.end(), hosts[rank]);
    command.insert(command.end(), {"-np", "1", "--host", absl::StrCat(hosts[rank], ":", slots)});
    AppendWorker(context, request, {nodes[rank]}, command);
  }
  return absl::OkStatus();
}

absl::StatusOr<Nodes> NodesOf(const CommandContext& context, const LaunchRequest& request) {
  Nodes nodes;
  for (const NodeName& name : request.nodes) {
    const v1::NodeSpec* node = FindNode(*context.cluster, name);
    if (node == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("node '", name.text(), "' of job ", request.key.job.text(),
                       " is not in the cluster file; add it there or cancel the job"));
    }
    nodes.push_back(node);
  }
  return nodes;
}

absl::StatusOr<MpirunOptions> Options(const CommandContext& context, const LaunchRequest& request,
                                      const Nodes& nodes) {
  const v1::ParallelSpec& parallel = request.spec.parallel();
  MpirunOptions options = {.transport = {.links = parallel.links(),
                                         .networks = context.network,
                                         .socket_buffer_bytes = parallel.socket_buffer_bytes()},
                           .remote_shell = context.cluster->launcher().remote_shell()};
  const auto through_agents = std::count_if(nodes.begin(), nodes.end(), [&](auto* node) {
    return context.agents.count(NodeName(node->name())) > 0;
  });
  if (through_agents == 0) return options;
  if (absl::StrContains(context.agent_program, ' ')) {
    return absl::InvalidArgumentError(
        absl::StrCat("mpirun splits '", context.agent_program,
                     "' at its spaces; install Espalier at a path without any"));
  }
  options.remote_shell = absl::StrCat(context.agent_program, " exec");
  options.hosts = static_cast<size_t>(through_agents) == nodes.size()
                      ? MpirunOptions::Hosts::kAgents
                      : MpirunOptions::Hosts::kBoth;
  return options;
}

constexpr std::streamoff kTailBytes = 16384;
constexpr size_t kLongest = 300;
constexpr absl::string_view kNoRoute =
    " (from a Mac: allow its agent's terminal in Privacy & Security, Local Network)";

struct Tail {
  std::string text;
  // There is more before it.
  bool cut = false;
};

Tail ReadTail(const std::string& path, int64_t first) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  const std::streamoff after = first <= size ? first : 0;
  const std::streamoff from = std::max(size - kTailBytes, after);
  std::string text(static_cast<size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return {std::move(text), from > after};
}

// mpirun puts what it has to say between two of these.
bool IsRule(absl::string_view line) {
  return line.size() >= 3 && line.find_first_not_of('-') == absl::string_view::npos;
}

// The sentences that mpirun wraps around every failure, and programs around what they refuse.
bool IsDecoration(absl::string_view line) {
  return line.empty() || absl::StrContains(line, "Primary job  terminated normally") ||
         absl::StrContains(line, "a non-zero exit code") ||
         absl::StrContains(line, "process returned") ||
         absl::StrContains(line, "the job to be terminated") ||
         absl::StrContains(line, "has sent help message") ||
         absl::StrContains(line, "Run with --help") || absl::StrContains(line, "Set MCA parameter");
}

// How much a line tells of an end, least first.
enum class Telling {
  kNothing,
  // Of a worker that is well.
  kProgress,
  // Of a worker that goes on.
  kWarning,
  // mpirun's advice, between rules.
  kAdvice,
  kLine,
  // Why a node's daemon was not started, which is all that mpirun's advice is about.
  kRemoteShellAgent,
};

Telling TellingOf(absl::string_view line, bool between_rules) {
  if (absl::StartsWith(line, "espalier-agent exec: ")) return Telling::kRemoteShellAgent;
  if (between_rules) return Telling::kAdvice;
  if (absl::StrContains(line, "Z info ")) return Telling::kProgress;
  return absl::StrContains(line, "Z warning ") ? Telling::kWarning : Telling::kLine;
}

// "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."; prterun
// in Open MPI 5.
std::optional<LastWords> NamedByMpirun(absl::string_view line) {
  constexpr absl::string_view kProcess = " noticed that process rank ";
  constexpr absl::string_view kExited = " exited on ";
  const size_t process = line.find(kProcess);
  const size_t exited = line.rfind(kExited);
  if (process == absl::string_view::npos || exited == absl::string_view::npos) return std::nullopt;
  const absl::string_view after = line.substr(process + kProcess.size());
  int64_t rank = 0;
  if (!absl::SimpleAtoi(after.substr(0, after.find(' ')), &rank)) return std::nullopt;
  const std::string how = AsUtf8(std::string(absl::StripSuffix(line.substr(exited), ".")));
  return LastWords{absl::StrCat("rank ", rank, how), Rank(rank), true};
}

// What mpirun says of a process that exited: "Process name: [[57914,1],0]", or, of Open MPI 5,
// "[prterun-vm-57914@1,0]".
std::optional<Rank> RankOfProcess(absl::string_view line) {
  const size_t comma = line.rfind(',');
  int64_t rank = 0;
  const bool named = absl::StartsWith(line, "Process name:") && comma != absl::string_view::npos &&
                     absl::SimpleAtoi(absl::StripSuffix(line.substr(comma + 1), "]"), &rank);
  return named ? std::optional<Rank>(rank) : std::nullopt;
}

}  // namespace

const std::string& NamedWorker(const v1::ClusterSpec& cluster, const v1::NodeSpec& node) {
  return node.worker().empty() ? cluster.launcher().worker() : node.worker();
}

std::map<NodeName, NodeName> SharedAgents(const v1::ClusterSpec& cluster,
                                          const std::vector<NodeName>& nodes,
                                          const std::set<NodeName>& attached) {
  std::map<NodeName, NodeName> agents;
  std::map<std::string, NodeName> first;
  for (const NodeName& node : nodes) {
    const v1::NodeSpec* spec = FindNode(cluster, node);
    if (spec == nullptr || attached.count(node) == 0) continue;
    agents[node] = first.emplace(spec->address(), node).first->second;
  }
  return agents;
}

std::string AgentHost(const NodeName& node) {
  // No dot: mpirun 4 takes what follows it for a domain and leaves it out. The digest keeps names
  // apart that differ in such characters only.
  std::string host = absl::StrCat("agent-", Sha256Hex(node.text()).substr(0, 6), "-");
  for (const char c : node.text()) {
    host.push_back(absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '-');
  }
  return host;
}

std::optional<Rank> RankOfLostDaemon(absl::string_view text,
                                     const std::vector<std::string>& hosts) {
  // "Remote daemon: [[24583,0],3] on node agent-037d39-ash"
  constexpr absl::string_view kDaemon = "Remote daemon:", kOn = " on node ";
  const size_t daemon = text.find(kDaemon);
  const size_t on = daemon == absl::string_view::npos ? daemon : text.find(kOn, daemon);
  if (on == absl::string_view::npos) return std::nullopt;
  const absl::string_view after = text.substr(on + kOn.size());
  const absl::string_view host = after.substr(0, after.find(' '));
  const auto rank = std::find(hosts.begin(), hosts.end(), host);
  if (host.empty() || rank == hosts.end() || std::count(hosts.begin(), hosts.end(), host) > 1)
    return std::nullopt;
  return Rank(rank - hosts.begin());
}

const v1::NodeSpec* FindNode(const v1::ClusterSpec& cluster, const NodeName& name) {
  const auto found =
      std::find_if(cluster.nodes().begin(), cluster.nodes().end(),
                   [&](const v1::NodeSpec& node) { return node.name() == name.text(); });
  return found == cluster.nodes().end() ? nullptr : &*found;
}

absl::StatusOr<std::vector<std::string>> MpirunCommand(const CommandContext& context,
                                                       const LaunchRequest& request) {
  ASSIGN_OR_RETURN(const Nodes nodes, NodesOf(context, request));
  ASSIGN_OR_RETURN(const MpirunOptions options, Options(context, request, nodes));
  std::vector<std::string> command = MpirunArguments(options, context.version);
  command.insert(command.begin(), context.cluster->launcher().mpirun());
  const bool one_place = std::all_of(nodes.begin(), nodes.end(), [&](const v1::NodeSpec* node) {
    return WorkerProgram(context, *node) == WorkerProgram(context, *nodes.front());
  });
  if (one_place) {
    AppendTogether(context, request, nodes, command);
  } else {
    RETURN_IF_ERROR(AppendApart(context, request, nodes, command));
  }
  return command;
}

std::vector<std::string> RemoteKillCommand(const v1::ClusterSpec& cluster, const v1::NodeSpec& node,
                                           const GenerationKey& key,
                                           const std::vector<int64_t>& pids) {
  std::vector<std::string> command =
      absl::StrSplit(cluster.launcher().remote_shell(), ' ', absl::SkipEmpty());
  command.push_back(node.address());
  // It succeeds only when it has seen that none is left.
  command.push_back(absl::StrCat(
      "ps -ww -o args= -p $$ >/dev/null || exit 1; "
      "alive() { ps -ww -o args= -p $1 | grep -q -e '--job-id ",
      key.job.text(), " --generation ", key.generation.value(), " '; }; for p in ",
      absl::StrJoin(pids, " "),
      "; do alive $p || continue; q=$(ps -o ppid= -p $p); kill -9 $p; "
      "case \"$(ps -o comm= -p $q)\" in *orted|*prted) kill -9 $q;; esac; "
      "n=0; while alive $p; do n=$((n+1)); test $n -lt 20 || exit 1; sleep 0.1; done; done"));
  return command;
}

absl::StatusOr<OpenMpiVersion> ProbeOpenMpi(const ProbeOptions& options, Clock& clock) {
  unlink(options.scratch.c_str());
  ASSIGN_OR_RETURN(GatedProcess process, GatedProcess::Spawn({.argv = {options.mpirun, "--version"},
                                                              .log_path = options.scratch}));
  process.Release();
  const absl::Duration deadline = clock.Monotonic() + options.limit;
  for (;;) {
    absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(process.identity().pid);
    if (!exit.ok() || exit->has_value()) break;
    if (clock.Monotonic() > deadline) {
      SignalSession(process.identity(), SIGKILL);
      return absl::DeadlineExceededError(
          absl::StrCat("`", options.mpirun, " --version` does not end"));
    }
    clock.Sleep(absl::Milliseconds(5));
  }
  std::ostringstream text;
  text << std::ifstream(options.scratch).rdbuf();
  unlink(options.scratch.c_str());
  return ParseOpenMpiVersion(text.str());
}

std::function<absl::StatusOr<OpenMpiVersion>()> RememberingProbe(ProbeOptions options,
                                                                 Clock& clock) {
  absl::StatusOr<OpenMpiVersion> known = ProbeOpenMpi(options, clock);
  options.limit = options.later_limit;
  return [options = std::move(options), known = std::move(known), &clock]() mutable {
    if (absl::IsDeadlineExceeded(known.status())) known = ProbeOpenMpi(options, clock);
    return known;
  };
}

LastWords ReadLastWords(const std::string& log_path, int64_t from) {
  const Tail tail = ReadTail(log_path, from);
  const std::vector<absl::string_view> lines = absl::StrSplit(tail.text, '\n');
  // Rules come in pairs; the first of the log may have been cut off.
  bool between_rules = tail.cut && std::count_if(lines.begin(), lines.end(), IsRule) % 2 != 0;
  std::string text;
  std::optional<Rank> first_exit;
  Telling best = Telling::kNothing;
  for (absl::string_view raw : lines) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (IsRule(line)) between_rules = !between_rules;
    if (IsRule(line) || IsDecoration(line)) continue;
    if (std::optional<LastWords> named = NamedByMpirun(line)) return *named;
    if (!first_exit) first_exit = RankOfProcess(line);
    const Telling telling = TellingOf(line, between_rules);
    if (telling < best) continue;
    if (telling > best) text.clear();
    best = telling;
    // Advice is one text of many lines, and its beginning matters.
    text = telling == Telling::kAdvice && !text.empty() ? absl::StrCat(text, " ", line)
                                                        : std::string(line);
  }
  const absl::string_view advice = absl::StrContains(text, "No route to host") ? kNoRoute : "";
  const size_t most = kLongest - advice.size();
  if (text.size() > most) text = text.substr(0, most - 3) + "...";
  absl::StrAppend(&text, advice);
  return {AsUtf8(text), std::nullopt, best > Telling::kWarning, first_exit};
}

}  // namespace espalier
