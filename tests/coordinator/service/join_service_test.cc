// Join over a real loopback server; the test plays the loop.
#include "coordinator/service/join_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/rpc/call.h"
#include "common/rpc/certificate.h"
#include "tests/common/rpc/tls_world.h"
#include "tests/coordinator/service/local_server.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class JoinCalls : public ::testing::Test {
 protected:
  v1::JoinRequest Request() {
    v1::JoinRequest request;
    request.set_node("mini");
    request.set_token("token");
    request.set_signing_request(MakeKeyRequest("mini")->request);
    request.set_unix_seconds(absl::ToDoubleSeconds(RealClock().Now() - absl::UnixEpoch()));
    return request;
  }
  absl::Status Call(const v1::JoinRequest& request) {
    BoundedContext context;
    return FromGrpc(stub_->Join(&context, request, &response_));
  }
  // A call that gets as far as the loop, which answers so.
  absl::Status CallAnswered(const v1::JoinRequest& request, const absl::StatusOr<Answer>& answer) {
    std::thread loop([&] {
      std::vector<Input> inputs;
      while (inputs.empty()) inputs = inbox_.Take(absl::Seconds(60));
      OperatorCall& call = std::get<OperatorCall>(inputs.at(0));
      joined_ = std::get<NodeJoined>(call.request);
      call.reply(answer);
    });
    const absl::Status status = Call(request);
    loop.join();
    return status;
  }

  TlsWorld world_;
  TlsFiles files_ =
      world_.Issue("coordinator", {.role = Role::kCoordinator, .addresses = {"127.0.0.1"}});
  Inbox inbox_{{}};
  Enrolment enrolment_{
      {.identity = *ServerIdentity::Load(files_, world_.folder() + "/copy.pem", RealClock()),
       .ca_path = files_.ca},
      RealClock()};
  JoinService service_{inbox_, enrolment_, RealClock()};
  LocalServer server_{&service_};
  std::unique_ptr<v1::JoinService::Stub> stub_ = v1::JoinService::NewStub(server_.Channel());
  v1::JoinResponse response_;
  NodeJoined joined_;
};

TEST_F(JoinCalls, TheCertificateIsOneOfTheNodeAndTheCoreKnowsIt) {
  ASSERT_EQ(CallAnswered(Request(), Answer{}), absl::OkStatus());
  const absl::StatusOr<CertificateInfo> info = VerifyCertificate(
      response_.certificate(), *ReadPemFile(files_.ca), CertificateUse::kClient, RealClock().Now());
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->name, "mini");
  EXPECT_EQ(info->role, Role::kWorker);
  EXPECT_EQ(joined_.serial, info->serial);
  EXPECT_EQ(joined_.certificate, info->fingerprint);
  EXPECT_LT(info->not_before, RealClock().Now() - absl::Minutes(50)) << "clocks may differ";
}

TEST_F(JoinCalls, WhatTheCoreRefusesGetsNoCertificate) {
  EXPECT_EQ(CallAnswered(Request(), absl::PermissionDeniedError("wrong token")),
            absl::PermissionDeniedError("wrong token"));
  EXPECT_EQ(response_.certificate(), "");
}

TEST_F(JoinCalls, ClocksThatAreHoursApartAreToldBeforeTheTokenIsUsed) {
  v1::JoinRequest request = Request();
  request.set_unix_seconds(request.unix_seconds() + 3 * 3600);
  const absl::Status status = Call(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("3h"), HasSubstr("ahead of"), HasSubstr("was not used up")));
  EXPECT_EQ(inbox_.depth(), 0u);
}

TEST_F(JoinCalls, WhatIsMalformedIsSaid) {
  v1::JoinRequest request = Request();
  request.set_node("../mini");
  EXPECT_THAT(Call(request).ToString(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("../mini")));
  request = Request();
  request.set_signing_request("no request");
  EXPECT_THAT(Call(request).ToString(), HasSubstr("PKCS #10"));
  request.set_signing_request(std::string(20000, 'x'));
  EXPECT_THAT(Call(request).ToString(), HasSubstr("16384"));
  request = Request();
  request.set_token(std::string(2000, 'x'));
  EXPECT_THAT(Call(request).ToString(), HasSubstr("1024"));
  EXPECT_EQ(inbox_.depth(), 0u);
}

TEST_F(JoinCalls, WhoGuessesHasToWait) {
  for (int i = 0; i < AttemptLimit::kFailures; ++i) {
    EXPECT_EQ(CallAnswered(Request(), absl::PermissionDeniedError("wrong")).code(),
              absl::StatusCode::kPermissionDenied);
  }
  const absl::Status status = Call(Request());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("try again in"));
}

TEST(AttemptLimits, FailuresOfOnePeerCountForAWhileAndForItAlone) {
  AttemptLimit limit;
  absl::Duration now = absl::Hours(5);
  for (int i = 0; i < AttemptLimit::kFailures; ++i) {
    EXPECT_EQ(limit.WaitOf("a", now), absl::ZeroDuration()) << i;
    limit.Failed("a", now);
  }
  EXPECT_EQ(limit.WaitOf("a", now), AttemptLimit::kPerFailure);
  EXPECT_EQ(limit.WaitOf("b", now), absl::ZeroDuration());
  now += AttemptLimit::kPerFailure;
  EXPECT_EQ(limit.WaitOf("a", now), absl::ZeroDuration()) << "one more";
  limit.Failed("a", now);
  EXPECT_EQ(limit.WaitOf("a", now), AttemptLimit::kPerFailure);
}

TEST(AttemptLimits, ManyPeersTakeBoundedMemoryAndShareALimit) {
  AttemptLimit limit;
  for (size_t i = 0; i < 2 * AttemptLimit::kPeers; ++i) {
    limit.Failed(std::to_string(i), absl::ZeroDuration());
  }
  EXPECT_GT(limit.WaitOf("another", absl::ZeroDuration()), absl::ZeroDuration());
}

TEST(Enrolling, WithoutTlsNobodyJoins) {
  const Enrolment enrolment({}, RealClock());
  EXPECT_EQ(enrolment.Describe().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(enrolment.Check().message()), HasSubstr("has no TLS"));
}

}  // namespace
}  // namespace espalier
