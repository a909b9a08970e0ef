#include "coordinator/service/daemon.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/base/address.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/cluster_file.h"
#include "common/observe/log.h"
#include "common/rpc/call.h"
#include "common/rpc/local_access.h"
#include "common/rpc/local_listener.h"
#include "common/rpc/server_credentials.h"
#include "coordinator/journal/sqlite_journal.h"
#include "coordinator/journal/state_lock.h"
#include "coordinator/launcher/mpirun.h"
#include "coordinator/launcher/mpirun_launcher.h"
#include "coordinator/launcher/versions.h"
#include "coordinator/loop/loop.h"
#include "coordinator/loop/messages.h"
#include "coordinator/service/agent_service.h"
#include "coordinator/service/attach_service.h"
#include "coordinator/service/enrolment.h"
#include "coordinator/service/join_service.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/operator_service.h"
#include "coordinator/service/refusal_log.h"
#include "coordinator/service/view_publisher.h"

namespace espalier {

// In the order of construction; destroyed backwards, so the server goes before what it serves.
struct DaemonParts {
  v1::ClusterSpec cluster;
  Clock* clock = nullptr;
  std::optional<StateLock> lock;
  std::unique_ptr<SqliteJournal> journal;
  Inbox inbox{{}};
  std::unique_ptr<AgentService> agents;
  std::unique_ptr<MpirunLauncher> launcher;
  ViewBoard board;
  std::unique_ptr<ViewPublisher> publisher;
  std::unique_ptr<AttachService> attach;
  std::unique_ptr<WorkerStreams> streams;
  std::unique_ptr<ProgramVersions> versions;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<StreamPump> pump;
  std::unique_ptr<OperatorService> operators;
  std::unique_ptr<Enrolment> enrolment;
  std::unique_ptr<JoinService> joins;
  std::shared_ptr<MetricsSource> metrics;
  std::unique_ptr<RefusalLog> refusals;
  // With TLS.
  std::shared_ptr<ServerIdentity> identity;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<LocalListener> local;
  std::unique_ptr<prometheus::Exposer> exposer;
  std::string socket;
  // HOST:PORT; empty without a TCP listener.
  std::string address;
  std::string metrics_address;
};

namespace {

// The streams of workers and agents: no two have the same number, and who does not know one does
// nothing.
class AllStreams : public WorkerStreams {
 public:
  AllStreams(AttachService& workers, AgentService& agents) : workers_(workers), agents_(agents) {}
  void Send(StreamId stream, v1::AttachResponse message) override {
    workers_.Send(stream, std::move(message));
  }
  void Close(StreamId stream, const absl::Status& status) override {
    workers_.Close(stream, status);
    agents_.Close(stream, status);
  }

 private:
  AttachService& workers_;
  AgentService& agents_;
};

constexpr int64_t kAddressFileBytesMax = 4096;
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

// Another program of the same installation.
std::string ProgramBeside(const std::string& program, const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::canonical(program, error);
  return error ? name : (self.parent_path() / name).string();
}

// As the launcher chooses it for a node that names none.
std::string WorkerProgram(const v1::ClusterSpec& cluster, const std::string& program) {
  const std::string& named = cluster.launcher().worker();
  return named.empty() ? ProgramBeside(program, "espalier-worker") : named;
}

std::optional<TlsFiles> TlsOf(const v1::ClusterSpec& cluster) {
  if (!cluster.has_tls()) return std::nullopt;
  return TlsFiles{cluster.tls().ca(), cluster.tls().certificate(), cluster.tls().key()};
}

// The listen address with the port that the system chose, where it was 0.
absl::StatusOr<std::string> WithPort(const std::string& listen, int port) {
  ASSIGN_OR_RETURN(HostPort address, ParseAddress(listen));
  address.port = static_cast<uint16_t>(port);
  return address.ToString();
}

// The loop's surroundings that live on disk and in processes.
absl::Status OpenState(DaemonParts& parts) {
  const std::string& state_dir = parts.cluster.state_dir();
  ASSIGN_OR_RETURN(parts.socket, SocketPath(state_dir));
  RETURN_IF_ERROR(MakeStateFolder(state_dir));
  ASSIGN_OR_RETURN(StateLock lock, StateLock::Take(state_dir, *parts.clock));
  parts.lock.emplace(std::move(lock));
  ASSIGN_OR_RETURN(parts.journal, SqliteJournal::Open(state_dir + "/journal.sqlite"));
  return absl::OkStatus();
}

absl::Status MakeAgentService(DaemonParts& parts) {
  AgentServiceOptions options{.job_folder = parts.cluster.state_dir() + "/jobs",
                              .warm_folder = WarmFolder(parts.cluster.state_dir()),
                              .clock = parts.clock};
  ASSIGN_OR_RETURN(options.exec_key, TakeToken(parts.cluster.state_dir()));
  parts.agents = std::make_unique<AgentService>(parts.inbox, std::move(options));
  return absl::OkStatus();
}

std::string AddressFile(const DaemonParts& parts) { return parts.cluster.state_dir() + "/address"; }

// The addresses to try: with port 0 first the one of the last time, where the workers of running
// generations expect a coordinator.
std::vector<std::string> ListenCandidates(const DaemonParts& parts) {
  const std::string& listen = parts.cluster.listen();
  const absl::StatusOr<HostPort> wanted = ParseAddress(listen);
  const absl::StatusOr<std::string> text =
      PosixFileSystem().Read(AddressFile(parts), kAddressFileBytesMax);
  if (!wanted.ok() || wanted->port != 0 || !text.ok()) return {listen};
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::ConsumePrefix(&line, "grpc=")) continue;
    const absl::StatusOr<HostPort> last = ParseAddress(line);
    if (last.ok() && last->host == wanted->host) return {last->ToString(), listen};
  }
  return {listen};
}

absl::Status LoadIdentity(DaemonParts& parts) {
  const std::optional<TlsFiles> files = TlsOf(parts.cluster);
  if (!files.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      parts.identity,
      ServerIdentity::Load(*files, parts.cluster.state_dir() + "/identity.pem", *parts.clock));
  return absl::OkStatus();
}

// TLS, or the token on loopback.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TcpCredentials(DaemonParts& parts,
                                                                        const std::string& listen) {
  ServerTls options = {
      .listen = listen,
      .identity = parts.identity,
      .revoked =
          [&board = parts.board](const std::string& serial) {
            return board.Current()->revoked->count(serial) > 0;
          },
      .refused =
          [&log = *parts.refusals](absl::string_view peer, absl::string_view method,
                                   const absl::Status& why) {
            log.Add(absl::StrCat("refused ", method, " from ", peer, ": ", why.message()));
          }};
  if (parts.identity == nullptr) {
    ASSIGN_OR_RETURN(options.token, TakeToken(parts.cluster.state_dir()));
  }
  return MakeServerCredentials(options, *parts.clock);
}

// `listen` may be empty: then only LocalListener brings connections.
absl::Status StartServer(DaemonParts& parts, const std::string& listen) {
  grpc::ServerBuilder builder;
  int port = 0;
  if (!listen.empty()) {
    ASSIGN_OR_RETURN(const auto credentials, TcpCredentials(parts, listen));
    builder.AddListeningPort(listen, credentials, &port);
  }
  // Otherwise a second espalierd could share the port and get half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  SetServerKeepalive(builder);
  builder.RegisterService(parts.attach.get());
  builder.RegisterService(parts.agents.get());
  builder.RegisterService(parts.operators.get());
  builder.RegisterService(parts.joins.get());
  parts.server = builder.BuildAndStart();
  if (parts.server == nullptr || (port == 0 && !listen.empty())) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", listen,
        "; is another espalierd running there, and is the address this machine's? choose another "
        "with --listen"));
  }
  if (listen.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(parts.address, WithPort(listen, port));
  return absl::OkStatus();
}

absl::Status OpenSocket(DaemonParts& parts) {
  ASSIGN_OR_RETURN(parts.local,
                   LocalListener::Open({.path = parts.socket,
                                        .server = parts.server.get(),
                                        .refused = [&log = *parts.refusals](absl::string_view why) {
                                          log.Add(absl::StrCat(
                                              "refused a connection to the Unix socket: ", why));
                                        }}));
  return absl::OkStatus();
}

absl::Status Listen(DaemonParts& parts) {
  RETURN_IF_ERROR(LoadIdentity(parts));
  parts.refusals = std::make_unique<RefusalLog>(&LogWarning, *parts.clock);
  parts.enrolment = std::make_unique<Enrolment>(
      EnrolmentOptions{.identity = parts.identity, .ca_path = parts.cluster.tls().ca()},
      *parts.clock);
  parts.joins = std::make_unique<JoinService>(parts.inbox, *parts.enrolment, *parts.clock);
  parts.pump = std::make_unique<StreamPump>(*parts.clock, StreamPump::Options{.also = [&parts] {
    parts.attach->CloseSilent();
    parts.agents->CloseSilent();
  }});
  parts.operators = std::make_unique<OperatorService>(
      OperatorBackend{.inbox = &parts.inbox,
                      .board = &parts.board,
                      .journal = parts.journal.get(),
                      .pump = parts.pump.get(),
                      .state_dir = parts.cluster.state_dir(),
                      .enrolment = parts.enrolment.get(),
                      .writable_folders = {parts.cluster.writable_folders().begin(),
                                           parts.cluster.writable_folders().end()}});
  absl::Status status;
  for (const std::string& listen : ListenCandidates(parts)) {
    status = StartServer(parts, listen);
    if (status.ok()) break;
  }
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(OpenSocket(parts));
  ASSIGN_OR_RETURN(parts.exposer, Expose(parts.cluster.metrics_listen()));
  parts.metrics = std::make_shared<MetricsSource>(parts.board, parts.inbox, *parts.clock);
  parts.exposer->RegisterCollectable(parts.metrics);
  ASSIGN_OR_RETURN(parts.metrics_address, WithPort(parts.cluster.metrics_listen(),
                                                   parts.exposer->GetListeningPorts().at(0)));
  return absl::OkStatus();
}

// Written last: who reads it finds a coordinator that answers.
absl::Status WriteAddress(const DaemonParts& parts) {
  const std::string grpc = parts.address.empty() ? "" : absl::StrCat("grpc=", parts.address, "\n");
  return WriteFileAtomically(
      PosixFileSystem(), AddressFile(parts),
      absl::StrCat("socket=", parts.socket, "\n", grpc, "metrics=", parts.metrics_address, "\n"));
}

// What workers connect to. Without TLS they are all of this machine.
absl::StatusOr<std::string> Advertised(const DaemonParts& parts) {
  if (!parts.cluster.has_tls()) return parts.cluster.state_dir();
  if (!parts.cluster.advertise().empty()) return parts.cluster.advertise();
  ASSIGN_OR_RETURN(const HostPort address, ParseAddress(parts.address));
  if (address.host != "0.0.0.0" && address.host != "::") return parts.address;
  return absl::FailedPreconditionError(
      absl::StrCat("listen is ", parts.cluster.listen(),
                   ", which is no address that workers could connect to; set advertise in the "
                   "cluster file to HOST:PORT as the workers see it"));
}

}  // namespace

void PrepareProcess() {
  constexpr rlim_t kDescriptors = 10240;  // more than macOS has is refused there
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kDescriptors) {
    limit.rlim_cur = std::min(limit.rlim_max, kDescriptors);
    (void)setrlimit(RLIMIT_NOFILE, &limit);  // with fewer it serves fewer
  }
  // Where Abseil was built for debugging, as Debian's is, each lock otherwise looks for cycles in a
  // graph of all locks of the process, behind one lock. Tests keep looking.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

std::string DaemonVersion() {
  return absl::StrCat("espalierd ", ESPALIER_VERSION, " (", LibraryVersions(), ")");
}

absl::StatusOr<v1::ClusterSpec> LoadDaemonCluster(const DaemonOptions& options) {
  ASSIGN_OR_RETURN(v1::ClusterSpec cluster, LoadClusterFile(options.cluster_file));
  if (options.listen) cluster.set_listen(*options.listen);
  if (options.metrics_listen) cluster.set_metrics_listen(*options.metrics_listen);
  if (options.state_dir) cluster.set_state_dir(*options.state_dir);
  RETURN_IF_ERROR(ValidateClusterSpec(cluster));
  if (cluster.has_tls() && !cluster.has_listen()) {
    return absl::InvalidArgumentError(
        "there is a tls section but no listen; give the IP:PORT where other machines reach it, for "
        "example 10.77.0.1:7070, in the cluster file or with --listen");
  }
  ASSIGN_OR_RETURN(const std::string state_dir, ExpandHome(cluster.state_dir()));
  cluster.set_state_dir(std::filesystem::absolute(state_dir).lexically_normal().string());
  return cluster;
}

Daemon::Daemon(std::unique_ptr<DaemonParts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const v1::ClusterSpec& cluster,
                                                      const std::string& program, Clock& clock) {
  auto owned = std::make_unique<DaemonParts>();
  DaemonParts& parts = *owned;
  parts.cluster = cluster;
  parts.clock = &clock;
  RETURN_IF_ERROR(OpenState(parts));
  const std::string& mpirun = cluster.launcher().mpirun();
  const std::string scratch = cluster.state_dir() + "/mpirun-version";
  RETURN_IF_ERROR(MakeAgentService(parts));
  parts.launcher = std::make_unique<MpirunLauncher>(MpirunLauncherOptions{
      .cluster = &parts.cluster,
      .default_worker = ProgramBeside(program, "espalier-worker"),
      .agents = parts.agents.get(),
      .agent_program = ProgramBeside(program, "espalier-agent"),
      .state_dir = cluster.state_dir(),
      .version = RememberingProbe({.mpirun = mpirun, .scratch = scratch}, clock)});
  parts.attach = std::make_unique<AttachService>(parts.inbox, clock);
  parts.streams = std::make_unique<AllStreams>(*parts.attach, *parts.agents);
  parts.publisher = std::make_unique<ViewPublisher>(parts.board, cluster, cluster.state_dir());
  parts.versions = std::make_unique<ProgramVersions>(
      ProgramVersionsOptions{.mpirun = mpirun,
                             .worker = WorkerProgram(cluster, program),
                             .scratch = cluster.state_dir()},
      clock);
  parts.loop =
      std::make_unique<Loop>(LoopParts{.clock = &clock,
                                       .journal = parts.journal.get(),
                                       .launcher = parts.launcher.get(),
                                       .streams = parts.streams.get(),
                                       .agents = parts.agents.get(),
                                       .inbox = &parts.inbox,
                                       .observer = parts.publisher.get(),
                                       .versions = parts.versions.get()},
                             LoopOptions{.cluster = cluster, .state_dir = cluster.state_dir()});
  RETURN_IF_ERROR(parts.loop->Start());
  RETURN_IF_ERROR(Listen(parts));
  ASSIGN_OR_RETURN(const std::string advertised, Advertised(parts));
  parts.launcher->SetCoordinator(advertised);
  parts.enrolment->Announce(advertised);
  RETURN_IF_ERROR(WriteAddress(parts));
  return std::unique_ptr<Daemon>(new Daemon(std::move(owned)));
}

Daemon::~Daemon() = default;

absl::Status Daemon::Run() {
  const absl::Status status = parts_->loop->Run();
  parts_->attach->CloseAll();
  parts_->agents->CloseAll();
  parts_->pump->Stop();
  parts_->local.reset();
  parts_->server->Shutdown(absl::ToChronoTime(parts_->clock->Now() + kShutdownGrace));
  return status;
}

void Daemon::ReloadCertificates() {
  if (parts_->identity == nullptr) {
    LogInfo("asked to load the certificates again, but there are none: no tls section");
    return;
  }
  const absl::StatusOr<CertificateInfo> info = parts_->identity->Reload();
  if (info.ok()) {
    LogInfo(absl::StrCat("loaded the certificates again: \"", info->name, "\", serial ",
                         info->serial, ", valid until ", absl::FormatTime(info->not_after)));
  } else {
    LogError(absl::StrCat("refused the new certificates, the old stay: ", info.status().message()));
  }
}

void Daemon::Stop() { parts_->loop->Stop(); }

std::string Daemon::Listening() const {
  return absl::StrCat(parts_->socket, parts_->address.empty() ? "" : " and ", parts_->address,
                      ", metrics on ", parts_->metrics_address);
}
std::string Daemon::socket() const { return parts_->socket; }
std::string Daemon::address() const { return parts_->address; }
std::string Daemon::metrics_address() const { return parts_->metrics_address; }

}  // namespace espalier
