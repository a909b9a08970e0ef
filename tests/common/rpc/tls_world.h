// TlsWorld: a temporary folder with a CA, certificates and a gRPC server behind them, for tests of
// both sides of a connection. Used by tests/common/rpc and tests/coordinator/service. One thread
// per world.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/pki.h"
#include "common/rpc/server_credentials.h"
#include "espalier/v1/operator.grpc.pb.h"

namespace espalier {

class TlsWorld {
 public:
  TlsWorld();
  ~TlsWorld();

  // Lifetimes relative to now; the CA "Lab CA" unless another was made by MakeOtherCa.
  struct Wanted {
    Role role = Role::kOperator;
    std::vector<std::string> addresses;
    absl::Duration begins = -absl::Hours(1);
    absl::Duration ends = absl::Hours(1);
    bool foreign = false;  // Signed by "Other CA".
  };
  // Issues, writes and names the files; `ca` is Lab CA's, whoever signed.
  TlsFiles Issue(const std::string& name, const Wanted& wanted);
  std::string other_ca() const { return folder_ + "/other/ca.crt"; }
  const std::string& folder() const { return folder_; }

  // Starts a server with these files on a free port of 127.0.0.1; returns its address.
  std::string Serve(const TlsFiles& files);
  // Of what Serve serves.
  ServerIdentity& identity() { return *identity_; }
  // Without TLS, for who carries kToken.
  std::string ServeWithoutTls();
  static constexpr char kToken[] = "the token of this world";
  // As another program could: the files are not checked, and clients are not asked for one.
  std::string ServeUnchecked(const TlsFiles& files);

  // ListJobs over a channel that presents `files` without checking them first, as another program
  // could; without files: TLS, but no client certificate.
  absl::Status RawListJobs(const std::string& address, const TlsFiles* files);
  // What the server said of refused calls: "NAME METHOD MESSAGE".
  std::vector<std::string> refusals();

 private:
  std::string Start(std::shared_ptr<grpc::ServerCredentials> credentials);
  decltype(ServerTls::refused) Refused();

  std::shared_ptr<ServerIdentity> identity_;
  std::string folder_;
  PemPair ca_;
  PemPair other_ca_;
  std::mutex mutex_;
  std::vector<std::string> refusals_;
  std::unique_ptr<v1::OperatorService::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

// The serial number of the certificate that a server shows to a new connection.
std::string ServerSerial(const std::string& address);

// ListJobs through MakeChannel, failures explained, as programs of Espalier call.
absl::Status ListJobs(const ChannelTarget& target);
absl::Status PauseJob(const ChannelTarget& target);
// Opens an Attach stream and closes it.
absl::Status AttachOnce(const ChannelTarget& target);

}  // namespace espalier
