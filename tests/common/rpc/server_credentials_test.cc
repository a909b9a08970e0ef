// Invariant 9, closed by default: nothing listens beyond loopback without TLS and an identity, and
// every refusal says why, on the side that refuses and on the side that is refused.
#include "common/rpc/server_credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/rpc/pem_file.h"
#include "tests/common/rpc/tls_world.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ClosedByDefault : public ::testing::Test {
 protected:
  TlsFiles Server() {
    return world_.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  }
  TlsWorld world_;
};

TEST_F(ClosedByDefault, OtherAddressesThanLoopbackNeedTls) {
  for (const char* listen : {"0.0.0.0:7070", "10.77.0.1:7070", "[::]:7070", "studio:7070"}) {
    const auto credentials = MakeServerCredentials({.listen = listen}, RealClock());
    EXPECT_EQ(credentials.status().code(), absl::StatusCode::kFailedPrecondition) << listen;
    EXPECT_THAT(std::string(credentials.status().message()),
                AllOf(HasSubstr(listen), HasSubstr("espalier pki init")));
  }
}

TEST_F(ClosedByDefault, LoopbackNeedsAToken) {
  for (const char* listen : {"127.0.0.1:7070", "[::1]:0", "localhost:7070"}) {
    EXPECT_TRUE(MakeServerCredentials({.listen = listen, .token = "t"}, RealClock()).ok());
    EXPECT_EQ(MakeServerCredentials({.listen = listen}, RealClock()).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << listen;
  }
  ChannelTarget target{.address = world_.ServeWithoutTls(), .token = TlsWorld::kToken};
  EXPECT_EQ(ListJobs(target), absl::OkStatus());
  EXPECT_EQ(AttachOnce(target).code(), absl::StatusCode::kUnimplemented) << "let through";
  EXPECT_THAT(world_.refusals(), IsEmpty());
}

TEST_F(ClosedByDefault, WhoHasNoTokenOnLoopbackIsToldWhereItIs) {
  const std::string address = world_.ServeWithoutTls();
  for (const char* token : {"", "wrong", "the token of this worlds"}) {
    const absl::Status status = PauseJob({.address = address, .token = token});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("`token` in its state folder"), HasSubstr("--coordinator")));
  }
  EXPECT_EQ(AttachOnce({.address = address}).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(world_.refusals().size(), 4u);
}

TEST_F(ClosedByDefault, AServerNeedsTheRoleCoordinator) {
  const TlsFiles worker = world_.Issue("studio", {.role = Role::kWorker});
  const auto credentials =
      ServerIdentity::Load(worker, world_.folder() + "/identity.pem", RealClock());
  EXPECT_EQ(credentials.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(
      std::string(credentials.status().message()),
      AllOf(HasSubstr("studio"), HasSubstr("role worker"), HasSubstr("--role coordinator")));
}

TEST_F(ClosedByDefault, EachRoleMayDoItsPart) {
  const std::string address = world_.Serve(Server());
  const auto as = [&](Role role) {
    return ChannelTarget{.address = address,
                         .tls = world_.Issue(std::string(RoleName(role)), {.role = role})};
  };
  EXPECT_EQ(ListJobs(as(Role::kOperator)), absl::OkStatus());
  EXPECT_EQ(ListJobs(as(Role::kViewer)), absl::OkStatus());
  EXPECT_EQ(PauseJob(as(Role::kOperator)), absl::OkStatus());
  // Let through to a service that is not there.
  EXPECT_EQ(AttachOnce(as(Role::kWorker)).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(AttachOnce(as(Role::kTrainer)).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(world_.refusals(), IsEmpty());
}

TEST_F(ClosedByDefault, AViewerCannotPause) {
  const std::string address = world_.Serve(Server());
  const TlsFiles viewer = world_.Issue("vera", {.role = Role::kViewer});
  const absl::Status status = PauseJob({.address = address, .tls = viewer});
  const std::string said =
      "certificate \"vera\" has the role viewer; Pause needs the role operator";
  EXPECT_EQ(status, absl::PermissionDeniedError(said));
  EXPECT_THAT(world_.refusals(), ElementsAre("vera /espalier.v1.OperatorService/Pause " + said));
}

TEST_F(ClosedByDefault, AWorkerCannotUseTheOperatorsVerbsNorAnOperatorAttach) {
  const std::string address = world_.Serve(Server());
  const TlsFiles worker = world_.Issue("studio", {.role = Role::kWorker});
  EXPECT_EQ(ListJobs({.address = address, .tls = worker}),
            absl::PermissionDeniedError("certificate \"studio\" has the role worker; ListJobs "
                                        "needs the role operator or viewer"));
  const TlsFiles ann = world_.Issue("ann", {.role = Role::kOperator});
  EXPECT_EQ(AttachOnce({.address = address, .tls = ann}),
            absl::PermissionDeniedError(
                "certificate \"ann\" has the role operator; Attach needs the role worker "
                "or trainer"));
}

struct RefusedClient {
  const char* name;
  TlsWorld::Wanted wanted;
  const char* message;
};

class RefusedClients : public ::testing::TestWithParam<RefusedClient> {};

// A client that does not check its own certificate hears it from the server.
TEST_P(RefusedClients, HearWhyAndTheServerSaysItToo) {
  TlsWorld world;
  const std::string address = world.Serve(
      world.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}}));
  const TlsFiles files = world.Issue("ann", GetParam().wanted);
  const absl::Status status = world.RawListJobs(address, &files);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(world.refusals(), ElementsAre(AllOf(HasSubstr("ann /espalier.v1.OperatorService/"),
                                                  HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Certificates, RefusedClients,
    ::testing::Values(
        RefusedClient{"Expired", {.ends = -absl::Minutes(30)}, "certificate \"ann\" expired on 20"},
        RefusedClient{"NotYetValid",
                      {.begins = absl::Minutes(30)},
                      "certificate \"ann\" is not valid before 20"},
        RefusedClient{"Foreign",
                      {.foreign = true},
                      "certificate \"ann\" was signed by the CA \"Other CA\", but this side trusts "
                      "the CA \"Lab CA\""}),
    [](const auto& test) { return test.param.name; });

TEST(SpeaksFor, ACertificateSpeaksForTheNodeOfItsNameAlone) {
  const Caller studio = {.name = "studio", .role = Role::kWorker};
  EXPECT_TRUE(CheckSpeaksFor(studio, NodeName("studio")).ok());
  EXPECT_EQ(CheckSpeaksFor(studio, NodeName("macbook")).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CheckSpeaksFor(studio, NodeName("")).code(), absl::StatusCode::kPermissionDenied);
  const Caller without_tls = {.name = "local"};
  EXPECT_TRUE(CheckSpeaksFor(without_tls, NodeName("macbook")).ok());
}

TEST(StartsByHand, ACertificateOfAnotherNameIsToBeATrainers) {
  for (const Role role : {Role::kWorker, Role::kTrainer}) {
    const absl::Status status =
        CheckStartsByHand({.name = "lab", .role = role}, NodeName("studio"));
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("espalier pki issue studio --role trainer"), HasSubstr("--node lab")));
  }
}

TEST(StartsByHand, AWorkersCertificateMakesNoJobs) {
  const NodeName studio("studio");
  EXPECT_TRUE(CheckStartsByHand({.name = "studio", .role = Role::kTrainer}, studio).ok());
  EXPECT_TRUE(CheckStartsByHand({.name = "local"}, studio).ok()) << "without TLS";
  const absl::Status status = CheckStartsByHand({.name = "studio", .role = Role::kWorker}, studio);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("espalier pki issue studio --role trainer"), HasSubstr("espalier submit")));
}

TEST_F(ClosedByDefault, AMissingCertificateIsNamed) {
  const std::string address = world_.Serve(Server());
  const absl::Status status = world_.RawListJobs(address, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no client certificate"));
  EXPECT_THAT(world_.refusals(), ElementsAre(HasSubstr("(no certificate) ")));
}

class Renewal : public ClosedByDefault {
 protected:
  // gRPC looks once a second.
  static bool Shows(const std::string& address, const std::string& serial) {
    for (int i = 0; i < 200; ++i) {
      if (ServerSerial(address) == serial) return true;
      RealClock().Sleep(absl::Milliseconds(50));
    }
    return false;
  }
};

TEST_F(Renewal, ANewCertificateIsShownWithoutARestartAndOldConnectionsGoOn) {
  const std::string address = world_.Serve(Server());
  const ChannelTarget ann{.address = address, .tls = world_.Issue("ann", {})};
  const auto channel = MakeChannel(ann, RealClock());
  const auto list = [&] {
    grpc::ClientContext context;
    PrepareCall(context, ann, absl::Seconds(20));
    v1::ListJobsResponse response;
    return v1::OperatorService::NewStub(*channel)->ListJobs(&context, {}, &response).ok();
  };
  EXPECT_TRUE(list());
  const std::string before = ServerSerial(address);
  Server();  // the same names, new files
  const auto info = world_.identity().Reload();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_NE(info->serial, before);
  EXPECT_TRUE(Shows(address, info->serial));
  EXPECT_TRUE(list());
  EXPECT_EQ(ListJobs(ann), absl::OkStatus());
}

TEST_F(Renewal, ABadNewCertificateIsRefusedAndTheOldStays) {
  const TlsFiles files = Server();
  const std::string address = world_.Serve(files);
  const std::string before = ServerSerial(address);
  const auto expect_refused = [&](const std::string& why) {
    const absl::Status status = world_.identity().Reload().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  world_.Issue(
      "coordinator",
      {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}, .ends = -absl::Minutes(30)});
  expect_refused("expired");
  world_.Issue("coordinator", {.role = Role::kWorker});
  expect_refused("role worker");
  ASSERT_TRUE(
      WritePemFile(files.certificate, "damaged", PemKind::kCertificate, Overwrite::kWhenPresent)
          .ok());
  expect_refused(files.certificate);
  RealClock().Sleep(absl::Seconds(3));  // longer than gRPC takes to look
  EXPECT_EQ(ServerSerial(address), before);
  EXPECT_EQ(ListJobs({.address = address, .tls = world_.Issue("ann", {})}), absl::OkStatus());
}

TEST_F(Renewal, TheCopyOfTheKeyIsTheOwnersAndGoesWithTheServer) {
  const std::string copy = world_.folder() + "/copy.pem";
  auto identity = ServerIdentity::Load(Server(), copy, RealClock()).value();
  EXPECT_EQ(std::filesystem::status(copy).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  identity.reset();
  EXPECT_FALSE(std::filesystem::exists(copy));
}

}  // namespace
}  // namespace espalier
