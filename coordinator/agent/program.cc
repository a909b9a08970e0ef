// The command line of espalier-agent.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "common/base/file_system.h"
#include "common/platform/platform.h"
#include "coordinator/agent/agent.h"
#include "coordinator/agent/exec.h"

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
  std::vector<std::string> job_folders = {"~/.local/state/espalier/jobs"};
  std::vector<std::string> data_folders;
};

void AddRun(CLI::App& app, RunOptions& options) {
  CLI::App* run = app.add_subcommand("run", "Attach this machine to espalierd as a node");
  run->add_option("--coordinator", options.coordinator,
                  "HOST:PORT of espalierd, or its state folder where it runs on this machine")
      ->required();
  run->add_option("--node", options.node, "Name of the node in the cluster file")->required();
  run->add_option("--state-dir", options.state_dir, "What the agent must remember")
      ->capture_default_str();
  CLI::Option* ca = run->add_option("--tls-ca", options.tls.ca, "The CA's certificate");
  CLI::Option* own = run->add_option("--tls-cert", options.tls.certificate, "The node's own");
  CLI::Option* key = run->add_option("--tls-key", options.tls.key, "Its key");
  ca->needs(own)->needs(key);
  own->needs(ca);
  key->needs(ca);
  run->add_option("--token", options.token, "espalierd's token, for loopback without TLS");
  run->add_option("--mpirun", options.mpirun, "mpirun of this node's Open MPI")
      ->capture_default_str();
  run->add_option("--jobs", options.job_folders, "Folders that hold JOB/checkpoints on this node")
      ->capture_default_str();
  run->add_option("--data", options.data_folders, "Folders of prepared data on this node");
}

absl::StatusOr<AgentOptions> Resolve(const RunOptions& options) {
  AgentOptions resolved;
  resolved.node = options.node;
  std::optional<TlsFiles> tls;
  if (!options.tls.ca.empty()) tls = options.tls;
  absl::StatusOr<ChannelTarget> target = MakeTarget(options.coordinator, tls, options.token);
  if (!target.ok()) return target.status();
  resolved.target = *std::move(target);
  NodeFactsOptions& facts = resolved.facts;
  absl::StatusOr<std::string> state = ExpandHome(options.state_dir);
  if (!state.ok()) return state.status();
  facts.state_dir = *std::move(state);
  facts.mpirun = options.mpirun;
  const absl::StatusOr<std::string> folder = ProgramFolder();
  facts.worker = folder.ok() ? JoinPath(*folder, "espalier-worker") : "espalier-worker";
  for (const std::string& path : options.job_folders) {
    absl::StatusOr<std::string> jobs = ExpandHome(path);
    if (jobs.ok()) facts.job_folders.push_back(*std::move(jobs));
  }
  facts.data_folders = options.data_folders;
  return resolved;
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
  app.add_subcommand("exec", "mpirun's remote-shell agent: exec HOST COMMAND...");
  app.set_version_flag("--version", std::string("espalier-agent ") + ESPALIER_VERSION);
  app.footer("Example:\n  espalier-agent run --coordinator 10.77.0.1:7070 --node macbook");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Run(options);
}

}  // namespace espalier
