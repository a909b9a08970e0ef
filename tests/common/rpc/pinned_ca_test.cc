// A server is trusted by the fingerprint of its CA, and by nothing less.
#include "common/rpc/pinned_ca.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "common/rpc/certificate.h"
#include "tests/common/rpc/tls_world.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

class PinnedCa : public ::testing::Test {
 protected:
  std::string Serve(const TlsWorld::Wanted& wanted) {
    files_ = world_.Issue("coordinator", wanted);
    return world_.Serve(files_);
  }
  std::string Serve() { return Serve({.role = Role::kCoordinator, .addresses = {"127.0.0.1"}}); }
  std::string Fingerprint(const std::string& ca) {
    return DescribeCertificate(*ReadPemFile(ca))->fingerprint;
  }
  absl::StatusOr<std::string> Fetch(const std::string& address, const std::string& ca_sha256) {
    return FetchPinnedCa({.address = address, .ca_sha256 = ca_sha256}, RealClock(), kTimeout);
  }

  TlsWorld world_;
  TlsFiles files_;
};

TEST_F(PinnedCa, AServerShowsItsCaToWhoKnowsTheFingerprint) {
  const std::string address = Serve();
  const absl::StatusOr<std::string> ca = Fetch(address, Fingerprint(files_.ca));
  ASSERT_TRUE(ca.ok()) << ca.status();
  EXPECT_EQ(DescribeCertificate(*ca)->fingerprint, Fingerprint(files_.ca));
}

TEST_F(PinnedCa, AnotherCaIsRefusedWithBothFingerprints) {
  const std::string address = Serve();
  const std::string other = Fingerprint(world_.other_ca());
  const absl::Status status = Fetch(address, other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(other), HasSubstr(Fingerprint(files_.ca)),
                    HasSubstr("espalier nodes add"), HasSubstr("was told nothing")));
}

// Who copies the CA's certificate, which is no secret, cannot make a server's.
TEST_F(PinnedCa, AServerThatOnlyShowsTheRightCaIsRefused) {
  TlsFiles files = world_.Issue(
      "mallory", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}, .foreign = true});
  const std::string ca = *ReadPemFile(files.ca);
  const std::string chain = *ReadPemFile(files.certificate) + ca;
  ASSERT_TRUE(
      WritePemFile(files.certificate, chain, PemKind::kCertificate, Overwrite::kWhenPresent).ok());
  const absl::Status status = Fetch(world_.ServeUnchecked(files), Fingerprint(files.ca)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("mallory"));
}

TEST_F(PinnedCa, AServerOfAnotherNameIsRefused) {
  const std::string address = Serve({.role = Role::kCoordinator, .addresses = {"10.77.0.1"}});
  const absl::Status status = Fetch(address, Fingerprint(files_.ca)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("127.0.0.1"), HasSubstr("10.77.0.1")));
}

TEST_F(PinnedCa, ACertificateThatIsNotValidYetNamesTheClock) {
  const TlsFiles files = world_.Issue("early", {.role = Role::kCoordinator,
                                                .addresses = {"127.0.0.1"},
                                                .begins = absl::Hours(3),
                                                .ends = absl::Hours(9)});
  TlsFiles chain = files;
  const std::string text = *ReadPemFile(files.certificate) + *ReadPemFile(files.ca);
  ASSERT_TRUE(
      WritePemFile(chain.certificate, text, PemKind::kCertificate, Overwrite::kWhenPresent).ok());
  const absl::Status status = Fetch(world_.ServeUnchecked(chain), Fingerprint(files.ca)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("not valid before"), HasSubstr("clock")));
}

TEST_F(PinnedCa, WhereNothingListensAndWhereNoTlsIsSpokenIsSaid) {
  const std::string fingerprint(64, 'a');
  EXPECT_EQ(Fetch("127.0.0.1:1", fingerprint).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status plain = Fetch(world_.ServeWithoutTls(), fingerprint).status();
  EXPECT_FALSE(plain.ok());
  EXPECT_THAT(std::string(plain.message()), HasSubstr("no espalierd with TLS"));
}

TEST_F(PinnedCa, AFingerprintIsSixtyFourDigits) {
  const std::string good(64, 'a');
  EXPECT_EQ(CheckFingerprint(good), absl::OkStatus());
  for (const std::string& bad : {std::string(), good + "a", good.substr(1), good.substr(1) + "g",
                                 absl::AsciiStrToUpper(good)}) {
    EXPECT_EQ(CheckFingerprint(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace espalier
