// espalierd: the coordinator daemon. SIGHUP has it load its certificates again. Exit status: 0
// stopped by SIGTERM or SIGINT, 1 cannot run, 2 wrong command line or cluster file.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <thread>

#include "coordinator/service/daemon.h"

namespace espalier {
namespace {

int Fail(int code, const absl::Status& status) {
  return std::cerr << "espalierd: " << status.message() << "\n", code;
}

int Serve(const DaemonOptions& options) {
  PrepareProcess();
  // Blocked before any thread exists, so that only the thread below gets them.
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  absl::StatusOr<v1::ClusterSpec> cluster = LoadDaemonCluster(options);
  if (!cluster.ok()) return Fail(2, cluster.status());
  auto daemon = Daemon::Start(*cluster, options.program, RealClock());
  if (!daemon.ok()) return Fail(absl::IsInvalidArgument(daemon.status()) ? 2 : 1, daemon.status());
  std::cout << "espalierd: listening on " << (*daemon)->Listening() << std::endl;
  std::thread listener([&signals, &daemon] {
    for (int s = 0; sigwait(&signals, &s) == 0 && s == SIGHUP;) (*daemon)->ReloadCertificates();
    (*daemon)->Stop();
  });
  const absl::Status ended = (*daemon)->Run();
  pthread_kill(listener.native_handle(), SIGTERM);  // it may have ended by itself
  listener.join();
  return ended.ok() ? 0 : Fail(1, ended);
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::DaemonOptions options;
  options.program = argv[0];
  CLI::App app("The coordinator of Espalier: schedules training jobs on the nodes of a cluster.");
  app.add_option("--cluster", options.cluster_file, "Cluster file (YAML)")->required();
  app.add_option("--state-dir", options.state_dir, "Instead of the cluster file's state_dir");
  app.add_option("--listen", options.listen, "IP:PORT of gRPC; port 0: any free one");
  app.add_option("--metrics-listen", options.metrics_listen, "IP:PORT of /metrics");
  app.set_version_flag("--version", espalier::DaemonVersion);
  app.footer("Example:\n  espalierd --cluster configs/clusters/local.yaml --state-dir /tmp/state");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return espalier::Serve(options);
}
