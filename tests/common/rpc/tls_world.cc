#include "tests/common/rpc/tls_world.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/rpc/call.h"
#include "common/rpc/probe.h"
#include "espalier/v1/worker.grpc.pb.h"

namespace espalier {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

// Answers what the tests call; everything else is UNIMPLEMENTED.
class EmptyService : public v1::OperatorService::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override {
    const Caller caller = CallerOf(*context);
    v1::JobStatus& job = *response->add_jobs();
    job.set_name(caller.name);
    return grpc::Status::OK;
  }
  grpc::Status Pause(grpc::ServerContext*, const v1::PauseRequest*, v1::PauseResponse*) override {
    return grpc::Status::OK;
  }
};

absl::StatusOr<PemPair> NewCa(const std::string& name) {
  const absl::Time now = RealClock().Now();
  return MakeCa(
      {.name = name, .not_before = now - absl::Hours(48), .not_after = now + absl::Hours(48)});
}

std::string Read(const std::string& path) { return ReadPemFile(path).value(); }

template <typename Call>
absl::Status OnStub(const ChannelTarget& target, const Call& call) {
  const auto channel = MakeChannel(target, RealClock());
  if (!channel.ok()) return channel.status();
  grpc::ClientContext context;
  PrepareCall(context, target, kTimeout);
  return ExplainFailure(FromGrpc(call(*channel, context)), target, RealClock());
}

}  // namespace

TlsWorld::TlsWorld() {
  std::string pattern = std::filesystem::temp_directory_path() / "espalier-tls-XXXXXX";
  folder_ = mkdtemp(pattern.data());
  ca_ = NewCa("Lab CA").value();
  other_ca_ = NewCa("Other CA").value();
  EXPECT_TRUE(WritePair(folder_, "ca", ca_, Overwrite::kNever).ok());
  EXPECT_TRUE(WritePair(folder_ + "/other", "ca", other_ca_, Overwrite::kNever).ok());
}

TlsWorld::~TlsWorld() {
  if (server_ != nullptr) server_->Shutdown();
  std::filesystem::remove_all(folder_);
}

TlsFiles TlsWorld::Issue(const std::string& name, const Wanted& wanted) {
  const absl::Time now = RealClock().Now();
  const PemPair pair =
      IssueCertificate(wanted.foreign ? other_ca_ : ca_, {.name = name,
                                                          .role = wanted.role,
                                                          .addresses = wanted.addresses,
                                                          .not_before = now + wanted.begins,
                                                          .not_after = now + wanted.ends})
          .value();
  EXPECT_TRUE(WritePair(folder_, name, pair, Overwrite::kWhenPresent).ok());
  return {.ca = folder_ + "/ca.crt",
          .certificate = absl::StrCat(folder_, "/", name, ".crt"),
          .key = absl::StrCat(folder_, "/", name, ".key")};
}

std::string TlsWorld::Start(std::shared_ptr<grpc::ServerCredentials> credentials) {
  service_ = std::make_unique<EmptyService>();
  grpc::ServerBuilder builder;
  int port = 0;
  SetServerKeepalive(builder);
  builder.AddListeningPort("127.0.0.1:0", std::move(credentials), &port);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  return absl::StrCat("127.0.0.1:", port);
}

decltype(ServerTls::refused) TlsWorld::Refused() {
  return [this](absl::string_view name, absl::string_view method, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    refusals_.push_back(absl::StrCat(name, " ", method, " ", status.message()));
  };
}

std::string TlsWorld::Serve(const TlsFiles& files) {
  identity_ = ServerIdentity::Load(files, folder_ + "/identity.pem", RealClock()).value();
  return Start(
      MakeServerCredentials({.listen = "127.0.0.1:0", .identity = identity_, .refused = Refused()},
                            RealClock())
          .value());
}

std::string TlsWorld::ServeWithoutTls() {
  return Start(MakeServerCredentials(
                   {.listen = "127.0.0.1:0", .token = kToken, .refused = Refused()}, RealClock())
                   .value());
}

std::string TlsWorld::ServeUnchecked(const TlsFiles& files) {
  grpc::SslServerCredentialsOptions options(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_key_cert_pairs.push_back(
      {.private_key = Read(files.key), .cert_chain = Read(files.certificate)});
  return Start(grpc::SslServerCredentials(options));
}

absl::Status TlsWorld::RawListJobs(const std::string& address, const TlsFiles* files) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ca_.certificate;
  if (files != nullptr) {
    options.pem_cert_chain = Read(files->certificate);
    options.pem_private_key = Read(files->key);
  }
  const auto stub =
      v1::OperatorService::NewStub(grpc::CreateChannel(address, grpc::SslCredentials(options)));
  grpc::ClientContext context;
  SetDeadline(context, kTimeout);
  v1::ListJobsResponse response;
  return FromGrpc(stub->ListJobs(&context, {}, &response));
}

std::string ServerSerial(const std::string& address) {
  const auto socket = ConnectTcp(*ParseAddress(address), kTimeout);
  if (!socket.ok()) return socket.status().ToString();
  const auto certificate = FetchServerChain(*socket, {}, kTimeout);
  if (!certificate.ok()) return certificate.status().ToString();
  return DescribeCertificate(certificate->front())->serial;
}

std::vector<std::string> TlsWorld::refusals() {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

absl::Status ListJobs(const ChannelTarget& target) {
  return OnStub(target, [](const auto& channel, grpc::ClientContext& context) {
    v1::ListJobsResponse response;
    return v1::OperatorService::NewStub(channel)->ListJobs(&context, {}, &response);
  });
}

absl::Status PauseJob(const ChannelTarget& target) {
  return OnStub(target, [](const auto& channel, grpc::ClientContext& context) {
    v1::PauseResponse response;
    return v1::OperatorService::NewStub(channel)->Pause(&context, {}, &response);
  });
}

absl::Status AttachOnce(const ChannelTarget& target) {
  return OnStub(target, [](const auto& channel, grpc::ClientContext& context) {
    const auto stream = v1::WorkerService::NewStub(channel)->Attach(&context);
    stream->WritesDone();
    return stream->Finish();
  });
}

}  // namespace espalier
