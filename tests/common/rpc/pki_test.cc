#include "common/rpc/pki.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/clock.h"
#include "common/rpc/certificate.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1800000000);

PemPair Ca(const std::string& name = "Lab CA") {
  return MakeCa({.name = name,
                 .not_before = kNow - absl::Hours(1),
                 .not_after = kNow + absl::Hours(1000)})
      .value();
}

CertificateRequest Request(Role role) {
  return {.name = "ann",
          .role = role,
          .addresses = {"10.77.0.1", "2001:db8::1", "studio.local"},
          .not_before = kNow - absl::Hours(1),
          .not_after = kNow + absl::Hours(10)};
}

TEST(Pki, ACertificateCarriesWhatWasAskedFor) {
  const PemPair pair = IssueCertificate(Ca(), Request(Role::kWorker)).value();
  const CertificateInfo info = DescribeCertificate(pair.certificate).value();
  EXPECT_EQ(info.name, "ann");
  EXPECT_EQ(info.issuer, "Lab CA");
  EXPECT_EQ(info.role, Role::kWorker);
  EXPECT_THAT(info.addresses, ElementsAre("10.77.0.1", "2001:db8::1", "studio.local"));
  EXPECT_EQ(info.not_before, kNow - absl::Hours(1));
  EXPECT_EQ(info.not_after, kNow + absl::Hours(10));
  EXPECT_FALSE(info.is_ca);
  EXPECT_TRUE(DescribeCertificate(Ca().certificate)->is_ca);
}

TEST(Pki, EveryRoleIsReadBack) {
  const PemPair ca = Ca();
  for (Role role : {Role::kOperator, Role::kViewer, Role::kWorker, Role::kCoordinator}) {
    const PemPair pair = IssueCertificate(ca, Request(role)).value();
    EXPECT_EQ(DescribeCertificate(pair.certificate)->role, role) << RoleName(role);
  }
}

TEST(Pki, ACertificateNeverOutlivesItsCa) {
  CertificateRequest request = Request(Role::kViewer);
  request.not_after = kNow + absl::Hours(100000);
  const PemPair pair = IssueCertificate(Ca(), request).value();
  EXPECT_EQ(DescribeCertificate(pair.certificate)->not_after, kNow + absl::Hours(1000));
  request.not_before = kNow + absl::Hours(2000);
  EXPECT_THAT(std::string(IssueCertificate(Ca(), request).status().message()),
              HasSubstr("\"Lab CA\" has expired"));
}

TEST(Pki, OnlyCoordinatorsServeAndOnlyOthersCall) {
  const PemPair ca = Ca();
  for (Role role : {Role::kOperator, Role::kViewer, Role::kWorker, Role::kCoordinator}) {
    const PemPair pair = IssueCertificate(ca, Request(role)).value();
    const auto fits = [&](CertificateUse use) {
      return VerifyCertificate(pair.certificate, ca.certificate, use, kNow).ok();
    };
    EXPECT_EQ(fits(CertificateUse::kServer), role == Role::kCoordinator) << RoleName(role);
    EXPECT_EQ(fits(CertificateUse::kClient), role != Role::kCoordinator) << RoleName(role);
  }
}

TEST(Pki, TwoCasOfOneNameAreToldApart) {
  const PemPair pair = IssueCertificate(Ca(), Request(Role::kViewer)).value();
  const auto verified =
      VerifyCertificate(pair.certificate, Ca().certificate, CertificateUse::kClient, kNow);
  EXPECT_EQ(verified.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(verified.status().message()),
              HasSubstr("another CA of the same name is trusted here (fingerprint "));
}

TEST(Pki, AnExpiredCaIsNamedAsTheCause) {
  const PemPair ca = Ca();
  CertificateRequest request = Request(Role::kViewer);
  request.not_after = kNow + absl::Hours(1000);
  const PemPair pair = IssueCertificate(ca, request).value();
  const auto verified = VerifyCertificate(pair.certificate, ca.certificate, CertificateUse::kClient,
                                          kNow + absl::Hours(2000));
  EXPECT_THAT(std::string(verified.status().message()),
              HasSubstr("CA certificate \"Lab CA\" expired on 2027-02-26 00:00:00 UTC"));
}

TEST(Pki, ServerNamesAreComparedAsAddressesOrNames) {
  const PemPair pair = IssueCertificate(Ca(), Request(Role::kCoordinator)).value();
  for (const char* host : {"10.77.0.1", "2001:db8:0::1", "studio.local", "STUDIO.local"}) {
    EXPECT_EQ(CheckServerName(pair.certificate, host), absl::OkStatus()) << host;
  }
  for (const char* host : {"10.77.0.2", "studio", "ann", "a.studio.local"}) {
    EXPECT_FALSE(CheckServerName(pair.certificate, host).ok()) << host;
  }
}

struct BadRequest {
  const char* name;
  CertificateRequest request;
  const char* message;
};

class RefusedRequests : public ::testing::TestWithParam<BadRequest> {};

TEST_P(RefusedRequests, SayWhatIsAllowed) {
  CertificateRequest request = GetParam().request;
  request.not_before = kNow;
  request.not_after = kNow + absl::Hours(1);
  const absl::Status status = IssueCertificate(Ca(), request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Requests, RefusedRequests,
    ::testing::Values(BadRequest{"NameWithSlash", {.name = "../ann"}, "name '../ann' must have"},
                      BadRequest{"NameWithComma", {.name = "a,URI:espalier"}, "must have 1 to 64"},
                      BadRequest{"EmptyName", {.name = ""}, "name '' must have"},
                      BadRequest{"AddressThatInjectsARole",
                                 {.name = "ann", .addresses = {"x,URI:espalier:role/operator"}},
                                 "neither an IP address nor a host name"},
                      BadRequest{"AddressWithPort",
                                 {.name = "ann", .addresses = {"studio:7070"}},
                                 "no port, no brackets"},
                      BadRequest{"CoordinatorWithoutAddress",
                                 {.name = "c", .role = Role::kCoordinator},
                                 "at least one --address"}),
    [](const auto& test) { return test.param.name; });

class PkiFiles : public ::testing::Test {
 protected:
  PkiFiles() {
    std::string pattern = std::filesystem::temp_directory_path() / "espalier-pki-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~PkiFiles() override { std::filesystem::remove_all(folder_); }
  static unsigned ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  }
  std::string folder_;
};

TEST_F(PkiFiles, KeysAreForTheOwnerAlone) {
  ASSERT_EQ(WritePair(folder_ + "/new", "ca", Ca(), Overwrite::kNever), absl::OkStatus());
  EXPECT_EQ(ModeOf(folder_ + "/new"), 0700u);
  EXPECT_EQ(ModeOf(folder_ + "/new/ca.key"), 0600u);
  EXPECT_EQ(ModeOf(folder_ + "/new/ca.crt"), 0644u);
}

TEST_F(PkiFiles, NothingIsReplacedUnlessForced) {
  const PemPair first = Ca("First"), second = Ca("Second");
  ASSERT_EQ(WritePair(folder_, "ca", first, Overwrite::kNever), absl::OkStatus());
  const absl::Status again = WritePair(folder_, "ca", second, Overwrite::kNever);
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("--force"));
  EXPECT_EQ(ReadCa(folder_)->certificate, first.certificate);
  EXPECT_EQ(ReadCa(folder_)->key, first.key);
  ASSERT_EQ(WritePair(folder_, "ca", second, Overwrite::kWhenPresent), absl::OkStatus());
  EXPECT_EQ(ReadCa(folder_)->key, second.key);
}

TEST_F(PkiFiles, AFailureLeavesNothingHalfWritten) {
  // A folder stands where the certificate should go: the key must not stay alone.
  std::filesystem::create_directories(folder_ + "/ann.crt/inside");
  EXPECT_FALSE(WritePair(folder_, "ann", Ca(), Overwrite::kWhenPresent).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ann.key"));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1) << "temporary files are left";
}

TEST_F(PkiFiles, AMissingCaSaysHowToMakeOne) {
  const absl::Status status = ReadCa(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("espalier pki init --dir " + folder_));
}

TEST(KeyRequests, TheCertificateIsForTheKeyAndSaysWhatTheSignerSays) {
  const absl::Time now = RealClock().Now();
  const PemPair ca =
      MakeCa({.name = "CA", .not_before = now - absl::Hours(1), .not_after = now + absl::Hours(1)})
          .value();
  const KeyRequest request = MakeKeyRequest("somebody").value();
  const std::string certificate = CertifyKeyRequest(ca,
                                                    {.name = "mini",
                                                     .role = Role::kWorker,
                                                     .not_before = now - absl::Hours(1),
                                                     .not_after = now + absl::Hours(9)},
                                                    request.request)
                                      .value();
  const CertificateInfo info =
      VerifyCertificate(certificate, ca.certificate, CertificateUse::kClient, now).value();
  EXPECT_EQ(info.name, "mini") << "whatever the request says";
  EXPECT_EQ(info.role, Role::kWorker);
  EXPECT_LE(info.not_after, now + absl::Hours(1)) << "not beyond the CA";
}

TEST(KeyRequests, WhatIsNoRequestIsRefused) {
  const absl::Time now = RealClock().Now();
  const PemPair ca =
      MakeCa({.name = "CA", .not_before = now, .not_after = now + absl::Hours(1)}).value();
  const CertificateRequest wanted{
      .name = "mini", .role = Role::kWorker, .not_before = now, .not_after = now + absl::Hours(1)};
  std::string damaged = MakeKeyRequest("mini")->request;
  damaged[damaged.size() / 2] = damaged[damaged.size() / 2] == 'A' ? 'B' : 'A';
  for (const std::string& text : {std::string(), std::string("x"), ca.certificate, damaged}) {
    EXPECT_EQ(CertifyKeyRequest(ca, wanted, text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(MakeKeyRequest("not a name").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PkiFiles, ForeignTextIsNoCertificate) {
  for (const char* text : {"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    EXPECT_EQ(DescribeCertificate(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace espalier
