// espalierd put together, in this process.
#include "coordinator/service/daemon.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/file_system.h"
#include "common/rpc/call.h"
#include "common/rpc/channel.h"
#include "common/rpc/local_access.h"
#include "common/rpc/pem_file.h"
#include "espalier/v1/agent.grpc.pb.h"
#include "espalier/v1/operator.grpc.pb.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "tests/common/rpc/tls_world.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/service/http_get.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// An empty request, as any program could send it.
absl::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(60));
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const grpc::Slice nothing("", 0);
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&nothing, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool done = false;
  queue.Next(&tag, &done);
  return FromGrpc(status);
}

// The hello of the first worker of an mpirun on node `a` that a person started, and how the stream
// ended. The hello names no data.
absl::Status StartByHand(const ChannelTarget& target) {
  grpc::ClientContext context;
  PrepareCall(context, target, absl::Seconds(60));
  const auto stub = v1::WorkerService::NewStub(*MakeChannel(target, RealClock()));
  const auto stream = stub->Attach(&context);
  v1::AttachRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_node("a");
  hello.set_world_size(1);
  hello.set_external_id("mpirun-1");
  hello.mutable_external_spec()->set_name("by-hand");
  stream->Write(request);
  v1::AttachResponse response;
  while (stream->Read(&response)) continue;
  return FromGrpc(stream->Finish());
}

// The machine's, set ahead by the test.
class AheadClock : public Clock {
 public:
  absl::Time Now() override { return RealClock().Now() + Ahead(); }
  absl::Duration Monotonic() override { return RealClock().Monotonic() + Ahead(); }
  void Sleep(absl::Duration duration) override { RealClock().Sleep(duration); }
  std::atomic<int> seconds = 0;

 private:
  absl::Duration Ahead() const { return absl::Seconds(seconds.load()); }
};

class Composed : public ::testing::Test {
 protected:
  ~Composed() override {
    if (daemon_ != nullptr) daemon_->Stop();
    if (runner_.joinable()) runner_.join();
  }

  absl::StatusOr<v1::ClusterSpec> Cluster(const std::string& more) {
    folder_.Write("cluster.yaml",
                  (absl::StrContains(more, "nodes:")
                       ? std::string()
                       : "nodes: [{name: a, address: 127.0.0.1" + node_more_ + "}]\n") +
                      more);
    return LoadDaemonCluster({.cluster_file = folder_.path("cluster.yaml"),
                              .state_dir = folder_.path("state"),
                              .listen = listen_.empty() ? std::nullopt : std::optional(listen_),
                              .metrics_listen = "127.0.0.1:0"});
  }
  absl::Status Start(const std::string& more = "") {
    absl::StatusOr<v1::ClusterSpec> cluster = Cluster(more);
    if (!cluster.ok()) return cluster.status();
    absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(*cluster, "test", clock_);
    if (!daemon.ok()) return daemon.status();
    daemon_ = *std::move(daemon);
    runner_ = std::thread([this] { EXPECT_TRUE(daemon_->Run().ok()); });
    return absl::OkStatus();
  }

  ScratchFolder folder_;
  std::string listen_ = "127.0.0.1:0";
  std::string node_more_;
  AheadClock clock_;
  std::unique_ptr<Daemon> daemon_;
  std::thread runner_;
};

TEST_F(Composed, InvariantClosedByDefault_ListensBeyondLoopbackOnlyWithTls) {
  listen_ = "0.0.0.0:7070";
  const absl::Status status = Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("0.0.0.0:7070"), HasSubstr("pki")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("state"))) << "nothing was touched";
}

TEST_F(Composed, InvariantClosedByDefault_WithoutListenThereIsTheUnixSocketAlone) {
  listen_ = "";
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(daemon_->address(), "");
  EXPECT_EQ(ListJobs({.address = "unix:" + daemon_->socket()}), absl::OkStatus());
  EXPECT_EQ(ListJobs(*MakeTarget(folder_.path("state"), std::nullopt, "")), absl::OkStatus());
}

TEST_F(Composed, InvariantClosedByDefault_LoopbackWithoutTlsAsksForTheToken) {
  ASSERT_TRUE(Start().ok());
  ChannelTarget target{.address = daemon_->address()};
  EXPECT_EQ(PauseJob(target).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(AttachOnce(target).code(), absl::StatusCode::kUnauthenticated);
  target = *MakeTarget(daemon_->address(), std::nullopt, folder_.path("state/token"));
  EXPECT_EQ(ListJobs(target), absl::OkStatus());
  EXPECT_EQ(ListJobs({.address = "unix:" + daemon_->socket()}), absl::OkStatus())
      << "the socket is there beside it";
}

TEST_F(Composed, TlsWithoutAnAddressIsRefused) {
  listen_ = "";
  node_more_ = ", tls: {ca: a, certificate: b, key: c}";
  EXPECT_THAT(Start("tls: {ca: a, certificate: b, key: c}\n").ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("listen")));
}

TEST_F(Composed, AStateFolderWhosePathIsTooLongForASocketIsRefusedUntouched) {
  v1::ClusterSpec cluster = *Cluster("");
  cluster.set_state_dir(folder_.path(std::string(100, 'x')));
  const absl::Status status = Daemon::Start(cluster, "test", RealClock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--state-dir"));
  EXPECT_FALSE(std::filesystem::exists(cluster.state_dir()));
}

TEST_F(Composed, EspalierLooksWhereEspalierdIsByDefault) {
  folder_.Write("bare.yaml", "nodes: []\n");
  const auto cluster = LoadDaemonCluster({.cluster_file = folder_.path("bare.yaml")});
  EXPECT_EQ(cluster->state_dir(), *ExpandHome(kDefaultStateDir));
}

TEST_F(Composed, WorkersAndAgentsThatSayNothingAreSentAway) {
  ASSERT_TRUE(Start().ok());
  const ChannelTarget target{.address = "unix:" + daemon_->socket()};
  const std::shared_ptr<grpc::Channel> channel = *MakeChannel(target, RealClock());
  grpc::ClientContext contexts[2];
  for (grpc::ClientContext& context : contexts) PrepareCall(context, target, absl::Seconds(60));
  const auto workers = v1::WorkerService::NewStub(channel);
  const auto agents = v1::AgentService::NewStub(channel);
  const auto worker = workers->Attach(&contexts[0]);
  const auto agent = agents->Attach(&contexts[1]);
  std::atomic<bool> ended = false;
  grpc::Status of_worker, of_agent;
  std::thread ends([&] {
    of_worker = worker->Finish();
    of_agent = agent->Finish();
    ended = true;
  });
  EXPECT_TRUE(WaitUntil([&] {
    clock_.seconds += 10;
    return ended.load();
  }));
  ends.join();
  EXPECT_THAT(of_worker.error_message(), HasSubstr("it is the first message of workers"));
  EXPECT_THAT(of_agent.error_message(), HasSubstr("it is the first message of agents"));
}

TEST_F(Composed, InvariantClosedByDefault_RolesHoldOnTheRealServer) {
  TlsWorld world;
  const TlsFiles own =
      world.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  const std::string tls = absl::StrCat("tls: {ca: ", own.ca, ", certificate: ", own.certificate,
                                       ", key: ", own.key, "}");
  node_more_ = ", " + tls;
  ASSERT_TRUE(Start(tls + "\n").ok());
  const auto target = [&](Role role) {
    return ChannelTarget{.address = daemon_->address(),
                         .tls = world.Issue(std::string(RoleName(role)), {.role = role})};
  };
  EXPECT_TRUE(ListJobs(target(Role::kViewer)).ok());
  EXPECT_EQ(PauseJob(target(Role::kViewer)).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ListJobs(target(Role::kWorker)).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(PauseJob(target(Role::kOperator)).code(), absl::StatusCode::kNotFound)
      << "let through: there is no such job";
}

// Every method of every service, over a connection without a client's certificate.
TEST_F(Composed, InvariantClosedByDefault_NoCallButJoinIsAnsweredWithoutAnIdentity) {
  TlsWorld world;
  const TlsFiles own =
      world.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  ASSERT_TRUE(Start(absl::StrCat("tls: {ca: ", own.ca, ", certificate: ", own.certificate,
                                 ", key: ", own.key, "}\nnodes: []\n"))
                  .ok());
  const auto channel = MakeStrangerChannel(daemon_->address(), *ReadPemFile(own.ca));
  ASSERT_TRUE(channel.ok()) << channel.status();
  int methods = 0;
  for (const char* name : {"AgentService", "JoinService", "OperatorService", "WorkerService"}) {
    const google::protobuf::ServiceDescriptor* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            absl::StrCat("espalier.v1.", name));
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const std::string method =
          absl::StrCat("/espalier.v1.", name, "/", service->method(i)->name());
      const absl::StatusCode code = CallRaw(*channel, method).code();
      const bool join = method == "/espalier.v1.JoinService/Join";
      EXPECT_EQ(code,
                join ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnauthenticated)
          << method;
    }
  }
  EXPECT_GT(methods, 15);
}

TEST_F(Composed, InvariantClosedByDefault_AWorkersCertificateMakesNoJobs) {
  TlsWorld world;
  const TlsFiles own =
      world.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  const std::string tls = absl::StrCat("tls: {ca: ", own.ca, ", certificate: ", own.certificate,
                                       ", key: ", own.key, "}");
  node_more_ = ", " + tls;
  ASSERT_TRUE(Start(tls + "\n").ok());
  const auto start_as = [&](Role role) {
    return StartByHand({.address = daemon_->address(), .tls = world.Issue("a", {.role = role})});
  };
  const absl::Status refused = start_as(Role::kWorker);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--role trainer"));
  EXPECT_EQ(start_as(Role::kTrainer).code(), absl::StatusCode::kFailedPrecondition)
      << "let through: what it names is no job";
}

TEST_F(Composed, CertificatesAreLoadedAgainWhileItServes) {
  TlsWorld world;
  const auto issue = [&] {
    return world.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  };
  const TlsFiles own = issue();
  const std::string tls = absl::StrCat("tls: {ca: ", own.ca, ", certificate: ", own.certificate,
                                       ", key: ", own.key, "}");
  node_more_ = ", " + tls;
  ASSERT_TRUE(Start(tls + "\n").ok());
  const std::string before = ServerSerial(daemon_->address());
  issue();
  daemon_->ReloadCertificates();
  EXPECT_TRUE(WaitUntil([&] { return ServerSerial(daemon_->address()) != before; }));
}

TEST_F(Composed, AStateFolderThatIsNotItsOwnIsLeftAsItIs) {
  v1::ClusterSpec cluster = *Cluster("");
  cluster.set_state_dir(folder_.root());
  const absl::Status status = Daemon::Start(cluster, "test", RealClock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cluster.yaml"));
}

TEST_F(Composed, ServesMetricsAndWritesWhereItListens) {
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(folder_.Read("state/address"),
            absl::StrCat("socket=", daemon_->socket(), "\ngrpc=", daemon_->address(),
                         "\nmetrics=", daemon_->metrics_address(), "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path("state/espalierd.sock")));
  const HostPort metrics = *ParseAddress(daemon_->metrics_address());
  const std::string page = HttpGet(metrics.port, "/metrics");
  EXPECT_THAT(page, AllOf(HasSubstr("espalier_build_info{version="),
                          HasSubstr("espalier_nodes{state=\"free\"} 1")));
}

TEST_F(Composed, APortThatIsTakenIsNamed) {
  ASSERT_TRUE(Start().ok());
  v1::ClusterSpec cluster = *Cluster("");
  cluster.set_listen(daemon_->address());
  cluster.set_state_dir(folder_.path("other"));
  const absl::Status status = Daemon::Start(cluster, "test", RealClock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(daemon_->address()), HasSubstr("--listen")));
}

TEST_F(Composed, WithoutMpirunItStartsForHandStartedJobs) {
  EXPECT_TRUE(Start("launcher: {mpirun: /no/such/mpirun}\n").ok());
}

TEST_F(Composed, AnUnknownKeyOfTheClusterFileIsRefused) {
  EXPECT_THAT(Start("listne: 127.0.0.1:1\n").ToString(),
              AllOf(HasSubstr("listne"), HasSubstr("listen")));
}

}  // namespace
}  // namespace espalier
