// Daemon: espalierd put together. Used by espalierd_main.cc and by tests.
//
//   gRPC threads -> AttachService, OperatorService -> Inbox -> Loop thread -> Journal, Launcher
//        ^                                                        |
//        +------------ WorkerStreams, replies <-------------------+
//   Prometheus, Watch, Logs <---- ViewBoard <--- ViewPublisher <--+
//
// Thread rule: Start, Run and destruction belong to one thread; Stop and ReloadCertificates may be
// called from any.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

// What the process of espalierd asks of the system, before it starts threads: a descriptor for
// every agent and worker, where systems give 256 or 1,024 to who does not ask, and locks without a
// search for cycles.
void PrepareProcess();

// "espalierd 0.1.0 (gRPC 1.51.1, protobuf 3.21.12)".
std::string DaemonVersion();

struct DaemonOptions {
  std::string cluster_file;
  // These replace what the cluster file says.
  std::optional<std::string> state_dir;
  std::optional<std::string> listen;
  std::optional<std::string> metrics_listen;
  // argv[0]: the default worker lies beside it.
  std::string program;
};

// The cluster file with the options applied, checked as a whole; state_dir is absolute.
absl::StatusOr<v1::ClusterSpec> LoadDaemonCluster(const DaemonOptions& options);

struct DaemonParts;

class Daemon {
 public:
  // Takes the state folder, reads the journal, adopts what runs, listens, and writes
  // STATE_DIR/address (lines "socket=PATH", "grpc=HOST:PORT" with a TCP listener, and
  // "metrics=HOST:PORT"). `clock` outlives it.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const v1::ClusterSpec& cluster,
                                                       const std::string& program, Clock& clock);
  ~Daemon();

  // Until Stop, or an error of the journal that cannot pass by itself, which is returned.
  // Generations that run go on running and attach again to the next espalierd.
  absl::Status Run();
  void Stop();
  // Takes what the TLS files hold now, for connections to come; logs what became of it. Bad files
  // change nothing.
  void ReloadCertificates();

  // All addresses, for people.
  std::string Listening() const;
  // STATE_DIR/espalierd.sock.
  std::string socket() const;
  // With the real ports; the first is empty without a TCP listener.
  std::string address() const;
  std::string metrics_address() const;

 private:
  explicit Daemon(std::unique_ptr<DaemonParts> parts);
  std::unique_ptr<DaemonParts> parts_;
};

}  // namespace espalier
