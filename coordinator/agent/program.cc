// The command line of espalier-agent.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/platform/platform.h"
#include "common/rpc/call.h"
#include "coordinator/agent/agent.h"
#include "coordinator/agent/exec.h"
#include "coordinator/agent/join.h"

namespace espalier {
namespace {

int Fail(int code, const absl::Status& status) {
  return std::cerr << "espalier-agent: " << status.message() << "\n", code;
}

struct RunOptions {
  std::string coordinator;
  std::string node;
  std::string state_dir = "~/.local/state/espalier-agent";
  TlsFiles tls;
  std::string token;
  std::string mpirun = "mpirun";
  std::vector<std::string> job_folders;
  std::vector<std::string> data_folders;
  std::string condition;
};

struct JoinCommand {
  JoinOptions join;
  bool only = false;
};

// Of run and join.
void AddCommon(CLI::App& verb, RunOptions& options) {
  verb.add_option("--state-dir", options.state_dir, "What the agent must remember")
      ->capture_default_str();
  verb.add_option("--mpirun", options.mpirun, "mpirun of this node's Open MPI")
      ->capture_default_str();
  verb.add_option("--jobs", options.job_folders,
                  "Folders that hold JOB/checkpoints on this node; default: jobs in espalierd's "
                  "state folder");
  verb.add_option("--data", options.data_folders, "Folders of prepared data on this node");
  verb.add_option("--condition", options.condition,
                  "File that says how the machine fares where the system does not, as JSON: "
                  "{\"heat\": \"NODE_PRESSURE_CRITICAL\"}; read for each report");
}

void AddRun(CLI::App& app, RunOptions& options) {
  CLI::App* run = app.add_subcommand("run", "Attach this machine to espalierd as a node");
  CLI::Option* coordinator =
      run->add_option("--coordinator", options.coordinator,
                      "HOST:PORT of espalierd, or its state folder where it runs on this machine; "
                      "default: the one that this machine has joined");
  CLI::Option* node =
      run->add_option("--node", options.node, "Name of the node; default: as it has joined");
  coordinator->needs(node);
  node->needs(coordinator);
  CLI::Option* ca = run->add_option("--tls-ca", options.tls.ca, "The CA's certificate");
  CLI::Option* own = run->add_option("--tls-cert", options.tls.certificate, "The node's own");
  CLI::Option* key = run->add_option("--tls-key", options.tls.key, "Its key");
  ca->needs(own)->needs(key)->needs(coordinator);
  own->needs(ca);
  key->needs(ca);
  run->add_option("--token", options.token, "espalierd's token, for loopback without TLS");
  AddCommon(*run, options);
}

CLI::App* AddJoin(CLI::App& app, JoinCommand& command, RunOptions& options) {
  CLI::App* join = app.add_subcommand(
      "join", "Become a node with the line that `espalier nodes add` prints, and run");
  join->add_option("COORDINATOR", command.join.coordinator.address, "HOST:PORT of espalierd")
      ->required();
  join->add_option("--name", command.join.node, "Name of the node")->required();
  join->add_option("--token", command.join.token, "Good once, for ten minutes")->required();
  join->add_option("--ca-sha256", command.join.coordinator.ca_sha256,
                   "Fingerprint of the CA that espalierd must be of")
      ->required();
  join->add_option("--worker", command.join.worker,
                   "espalier-worker here, where it lies elsewhere than on espalierd's machine");
  join->add_flag("--only", command.only, "Do not run afterwards");
  AddCommon(*join, options);
  return join;
}

// Who the agent is: as the command line says, or as it has joined.
absl::Status FindIdentity(const RunOptions& options, AgentOptions& resolved) {
  std::string coordinator = options.coordinator;
  std::optional<TlsFiles> tls;
  if (!options.tls.ca.empty()) tls = options.tls;
  resolved.node = options.node;
  if (coordinator.empty()) {
    ASSIGN_OR_RETURN(const std::optional<NodeIdentity> joined,
                     ReadIdentity(resolved.facts.state_dir));
    if (!joined) {
      return absl::InvalidArgumentError(absl::StrCat(
          "this machine has not joined an espalierd (nothing in ", resolved.facts.state_dir,
          "): run the line that `espalier nodes add NAME` prints where espalierd is operated, or "
          "give --coordinator and --node"));
    }
    resolved.node = joined->node;
    coordinator = joined->coordinator;
    tls = joined->files;
  }
  ASSIGN_OR_RETURN(resolved.target, MakeTarget(coordinator, tls, options.token));
  return absl::OkStatus();
}

absl::StatusOr<AgentOptions> Resolve(const RunOptions& options) {
  AgentOptions resolved;
  NodeFactsOptions& facts = resolved.facts;
  ASSIGN_OR_RETURN(facts.state_dir, ExpandHome(options.state_dir));
  RETURN_IF_ERROR(FindIdentity(options, resolved));
  facts.mpirun = options.mpirun;
  const absl::StatusOr<std::string> folder = ProgramFolder();
  facts.worker = folder.ok() ? JoinPath(*folder, "espalier-worker") : "espalier-worker";
  for (const std::string& path : options.job_folders) {
    absl::StatusOr<std::string> jobs = ExpandHome(path);
    if (jobs.ok()) facts.job_folders.push_back(*std::move(jobs));
  }
  facts.data_folders = options.data_folders;
  facts.condition_file = options.condition;
  resolved.sleep = SleepNotice::Start();
  resolved.keep_awake = [] { return KeepAwake::Start("Espalier may go on with a job"); };
  return resolved;
}

absl::Status JoinHere(JoinOptions join, const RunOptions& options) {
  ASSIGN_OR_RETURN(const std::string state_dir, ExpandHome(options.state_dir));
  // Workers elsewhere on this machine are told of it.
  join.state_dir = std::filesystem::absolute(state_dir).lexically_normal().string();
  ASSIGN_OR_RETURN(const NodeIdentity identity, Join(join, RealClock()));
  const bool usual = options.state_dir == RunOptions().state_dir;
  std::cerr << "espalier-agent: joined " << identity.coordinator << " as node " << identity.node
            << "; from now on: espalier-agent run"
            << (usual ? "" : absl::StrCat(" --state-dir ", join.state_dir)) << "\n";
  return absl::OkStatus();
}

int Run(const RunOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread exists
  signal(SIGPIPE, SIG_IGN);
  absl::StatusOr<AgentOptions> resolved = Resolve(options);
  if (!resolved.ok()) return Fail(1, resolved.status());
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(*std::move(resolved), RealClock());
  if (!agent.ok()) return Fail(1, agent.status());
  std::thread([&signals, &agent] {
    int received = 0;
    sigwait(&signals, &received);
    (*agent)->Stop();
  }).detach();
  const absl::Status ended = (*agent)->Run();
  return ended.ok() ? 0 : Fail(1, ended);
}

int Exec(const std::vector<std::string>& words) {
  const ReadVariable variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return RunExec(words, variable, RealClock());
}

}  // namespace

int RunAgentProgram(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what follows says more
  // mpirun's words are not ours to interpret.
  if (argc > 1 && std::string(argv[1]) == "exec") return Exec({argv + 2, argv + argc});
  RunOptions options;
  CLI::App app("The agent of a node: says what the machine has, and starts and ends jobs on it.");
  app.require_subcommand(1);
  AddRun(app, options);
  JoinCommand command;
  const CLI::App* join = AddJoin(app, command, options);
  app.add_subcommand("exec", "mpirun's remote-shell agent: exec HOST COMMAND...");
  app.set_version_flag("--version", [] {
    return absl::StrCat("espalier-agent ", ESPALIER_VERSION, " (", LibraryVersions(), ")");
  });
  app.footer(
      "Examples:\n  espalier-agent join 10.77.0.1:7070 --name macbook --token ... --ca-sha256 ...\n"
      "  espalier-agent run");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (join->parsed()) {
    const absl::Status joined = JoinHere(command.join, options);
    if (!joined.ok()) return Fail(1, joined);
    if (command.only) return 0;
  }
  return Run(options);
}

}  // namespace espalier
