#include "coordinator/launcher/mpirun.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "coordinator/launcher/network.h"
#include "coordinator/launcher/process.h"

namespace espalier {
namespace {

std::string WorkerProgram(const CommandContext& context, const v1::NodeSpec& node) {
  if (!node.worker().empty()) return node.worker();
  if (!context.cluster->launcher().worker().empty()) return context.cluster->launcher().worker();
  return context.default_worker;
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

// mpirun takes only 127.0.0.1 for itself, not the rest of the loopback network.
std::string Address(const v1::NodeSpec& node) {
  return IsLoopbackAddress(node.address()) ? "127.0.0.1" : node.address();
}

// "ADDRESS:SLOTS": a slot for every rank there, or mpirun would call the host full after the first.
std::string Host(const v1::NodeSpec& node, const std::vector<const v1::NodeSpec*>& nodes) {
  const auto slots = std::count_if(nodes.begin(), nodes.end(), [&](const v1::NodeSpec* other) {
    return Address(*other) == Address(node);
  });
  return absl::StrCat(Address(node), ":", slots);
}

void AppendWorker(const CommandContext& context, const LaunchRequest& request,
                  const v1::NodeSpec& node, const std::string& host,
                  std::vector<std::string>& command) {
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  add({"-np", "1", "--host", host, WorkerProgram(context, node)});
  add({"--coordinator", context.coordinator, "--job-id", request.key.job.text()});
  add({"--generation", absl::StrCat(request.key.generation.value()), "--node", node.name()});
  add({"--rank-count", absl::StrCat(request.nodes.size())});
  if (const int32_t threads = Threads(request.spec, node); threads > 0) {
    add({"--threads", absl::StrCat(threads)});
  }
  if (const std::string device = Device(request.spec, node); device != "auto") {
    add({"--device", device});
  }
  if (node.has_tls()) {
    add({"--tls-ca", node.tls().ca(), "--tls-cert", node.tls().certificate()});
    add({"--tls-key", node.tls().key()});
  }
}

absl::StatusOr<std::vector<const v1::NodeSpec*>> NodesOf(const CommandContext& context,
                                                         const LaunchRequest& request) {
  std::vector<const v1::NodeSpec*> nodes;
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

constexpr std::streamoff kTailBytes = 16384;
constexpr size_t kLongest = 300;

std::string ReadTail(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff from = size > kTailBytes ? size - kTailBytes : 0;
  std::string text(static_cast<size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Rules and the sentences that mpirun wraps around every failure.
bool IsDecoration(absl::string_view line) {
  return line.empty() || absl::StartsWith(line, "---") ||
         absl::StrContains(line, "Primary job  terminated normally") ||
         absl::StrContains(line, "a non-zero exit code") ||
         absl::StrContains(line, "process returned") ||
         absl::StrContains(line, "the job to be terminated");
}

}  // namespace

const v1::NodeSpec* FindNode(const v1::ClusterSpec& cluster, const NodeName& name) {
  const auto found =
      std::find_if(cluster.nodes().begin(), cluster.nodes().end(),
                   [&](const v1::NodeSpec& node) { return node.name() == name.text(); });
  return found == cluster.nodes().end() ? nullptr : &*found;
}

absl::StatusOr<std::vector<std::string>> MpirunCommand(const CommandContext& context,
                                                       const LaunchRequest& request) {
  ASSIGN_OR_RETURN(const std::vector<const v1::NodeSpec*> nodes, NodesOf(context, request));
  const v1::ParallelSpec& parallel = request.spec.parallel();
  const v1::LauncherSpec& launcher = context.cluster->launcher();
  std::vector<std::string> command =
      MpirunArguments({.transport = {.links = parallel.links(),
                                     .networks = context.network,
                                     .socket_buffer_bytes = parallel.socket_buffer_bytes()},
                       .remote_shell = launcher.remote_shell()},
                      context.version);
  command.insert(command.begin(), launcher.mpirun());
  for (const v1::NodeSpec* node : nodes) {
    if (node != nodes.front()) command.push_back(":");
    AppendWorker(context, request, *node, Host(*node, nodes), command);
  }
  return command;
}

std::vector<std::string> RemoteKillCommand(const v1::ClusterSpec& cluster, const v1::NodeSpec& node,
                                           const GenerationKey& key,
                                           const std::vector<int64_t>& pids) {
  std::vector<std::string> command =
      absl::StrSplit(cluster.launcher().remote_shell(), ' ', absl::SkipEmpty());
  command.push_back(node.address());
  command.push_back(absl::StrCat(
      "for p in ", absl::StrJoin(pids, " "), "; do ps -ww -o args= -p $p | grep -q -e '--job-id ",
      key.job.text(), " --generation ", key.generation.value(),
      " ' || continue; q=$(ps -o ppid= -p $p); kill -9 $p; "
      "case \"$(ps -o comm= -p $q)\" in *orted|*prted) kill -9 $q;; esac; done"));
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

std::string LastWords(const std::string& log_path) {
  const std::string text = ReadTail(log_path);
  std::string last, named;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (IsDecoration(line)) continue;
    last = std::string(line);
    if (absl::StrContains(line, "mpirun noticed that process")) named = last;
  }
  std::string& words = named.empty() ? last : named;
  if (words.size() > kLongest) words = words.substr(0, kLongest - 3) + "...";
  return AsUtf8(words);
}

}  // namespace espalier
