// What a client says when it cannot or must not talk to a server.
#include "common/rpc/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/common/rpc/tls_world.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Unreachable : public ::testing::Test {
 protected:
  TlsFiles Client() { return world_.Issue("ann", {.role = Role::kOperator}); }
  std::string Serve(const TlsWorld::Wanted& wanted) {
    return world_.Serve(world_.Issue("coordinator", wanted));
  }
  TlsWorld world_;
};

// A port of 127.0.0.1 on which somebody listens without ever answering, or nobody at all.
class Port {
 public:
  explicit Port(bool listening) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    if (listening) {
      EXPECT_EQ(listen(fd_, 8), 0);
    }
    port_ = ntohs(address.sin_port);
  }
  ~Port() { close(fd_); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int fd_;
  int port_;
};

void ExpectStatus(const absl::Status& status, absl::StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST_F(Unreachable, NothingListens) {
  const Port port(false);
  ExpectStatus(ListJobs({.address = port.address(), .tls = std::nullopt}),
               absl::StatusCode::kUnavailable, "nothing listens on " + port.address());
}

TEST_F(Unreachable, TheHostIsUnknown) {
  const absl::Status status = DiagnoseConnection(
      {.address = "no-such-host.invalid:7070", .tls = Client()}, RealClock(), absl::Seconds(20));
  ExpectStatus(status, absl::StatusCode::kUnavailable, "host name 'no-such-host.invalid'");
}

TEST_F(Unreachable, TheServerAcceptsButNeverAnswers) {
  const Port port(true);
  ExpectStatus(DiagnoseConnection({.address = port.address(), .tls = Client()}, RealClock(),
                                  absl::Milliseconds(50)),
               absl::StatusCode::kUnavailable, "does not answer");
}

TEST_F(Unreachable, AnotherHostNeedsTls) {
  ExpectStatus(ListJobs({.address = "10.77.0.1:7070", .tls = std::nullopt}),
               absl::StatusCode::kUnauthenticated, "10.77.0.1:7070 is not this machine's loopback");
}

TEST_F(Unreachable, TheServerWantsTls) {
  const std::string address = Serve({.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  ExpectStatus(ListJobs({.address = address, .tls = std::nullopt}),
               absl::StatusCode::kUnauthenticated, address + " speaks TLS: give the CA");
}

TEST_F(Unreachable, TheServerHasNoTls) {
  const std::string address = world_.ServeWithoutTls();
  ExpectStatus(ListJobs({.address = address, .tls = Client()}), absl::StatusCode::kUnauthenticated,
               address + " does not speak TLS");
}

TEST_F(Unreachable, TheServersCaIsAnother) {
  const std::string address = Serve({.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  TlsFiles files = world_.Issue("eve", {.foreign = true});
  files.ca = world_.other_ca();
  const absl::Status status = ListJobs({.address = address, .tls = files});
  ExpectStatus(status, absl::StatusCode::kUnauthenticated,
               "the server at " + address + " is not trusted");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("signed by the CA \"Lab CA\""),
                    HasSubstr("this side trusts the CA \"Other CA\"")));
}

TEST_F(Unreachable, TheServersCertificateNamesAnotherAddress) {
  const std::string address =
      Serve({.role = Role::kCoordinator, .addresses = {"10.77.0.1", "studio"}});
  ExpectStatus(ListJobs({.address = address, .tls = Client()}), absl::StatusCode::kUnauthenticated,
               "certificate \"coordinator\" does not name 127.0.0.1 (it names 10.77.0.1, studio)");
}

TEST_F(Unreachable, TheServersCertificateExpired) {
  const std::string address = world_.ServeUnchecked(world_.Issue(
      "coordinator",
      {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}, .ends = -absl::Minutes(1)}));
  ExpectStatus(ListJobs({.address = address, .tls = Client()}), absl::StatusCode::kUnauthenticated,
               "certificate \"coordinator\" expired on");
}

TEST_F(Unreachable, TheOwnCertificateIsCheckedFirst) {
  const TlsFiles expired = world_.Issue("old", {.ends = -absl::Minutes(1)});
  ExpectStatus(ListJobs({.address = "10.77.0.1:7070", .tls = expired}),
               absl::StatusCode::kUnauthenticated, "old.crt: certificate \"old\" expired on");
  const TlsFiles foreign = world_.Issue("eve", {.foreign = true});
  ExpectStatus(ListJobs({.address = "10.77.0.1:7070", .tls = foreign}),
               absl::StatusCode::kUnauthenticated, "signed by the CA \"Other CA\"");
}

TEST_F(Unreachable, TheKeyMustBelongToTheCertificate) {
  TlsFiles files = Client();
  files.key = world_.Issue("bob", {}).key;
  ExpectStatus(ListJobs({.address = "10.77.0.1:7070", .tls = files}),
               absl::StatusCode::kUnauthenticated, "bob.key is not the key of");
}

TEST_F(Unreachable, AMissingFileIsNamed) {
  TlsFiles files = Client();
  files.certificate = world_.folder() + "/nobody.crt";
  ExpectStatus(ListJobs({.address = "10.77.0.1:7070", .tls = files}),
               absl::StatusCode::kUnauthenticated, "nobody.crt: No such file");
}

TEST_F(Unreachable, AnAddressWithoutPortIsExplained) {
  ExpectStatus(ListJobs({.address = "studio", .tls = std::nullopt}),
               absl::StatusCode::kInvalidArgument, "'studio' has no port; write HOST:PORT");
}

TEST_F(Unreachable, AHealthyServerNeedsNoDiagnosis) {
  const std::string address = Serve({.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  EXPECT_EQ(
      DiagnoseConnection({.address = address, .tls = Client()}, RealClock(), absl::Seconds(20)),
      absl::OkStatus());
}

}  // namespace
}  // namespace espalier
