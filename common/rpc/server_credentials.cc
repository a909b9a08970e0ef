#include "common/rpc/server_credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/rpc/call.h"
#include "common/rpc/certificate.h"
#include "common/rpc/local_access.h"

namespace espalier {
namespace {

std::string PeerCertificate(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> values =
      context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return values.empty() ? "" : std::string(values[0].data(), values[0].size());
}

std::string MethodOf(const grpc::AuthMetadataProcessor::InputMetadata& metadata) {
  const auto path = metadata.find(":path");
  return path == metadata.end() ? "" : std::string(path->second.data(), path->second.size());
}

// Verifies each call's certificate against the CA and its role against the method.
class CertificateProcessor : public grpc::AuthMetadataProcessor {
 public:
  CertificateProcessor(ServerTls options, Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  // Some 0.1 ms of arithmetic: cheaper than a change of thread.
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const std::string method = MethodOf(metadata);
    const std::string certificate = PeerCertificate(*context);
    const absl::Status status = Check(certificate, method);
    if (!status.ok() && options_.refused) options_.refused(NameOf(certificate), method, status);
    return ToGrpc(status);
  }

 private:
  absl::Status Check(const std::string& certificate, absl::string_view method) const {
    if (IsForStrangers(method)) return absl::OkStatus();
    if (certificate.empty()) {
      return absl::UnauthenticatedError(
          "no client certificate: this espalierd wants one that `espalier pki issue` made with its "
          "CA");
    }
    ASSIGN_OR_RETURN(const CertificateInfo info,
                     VerifyCertificate(certificate, options_.identity->ca(),
                                       CertificateUse::kClient, clock_.Now()));
    if (options_.revoked && options_.revoked(info.serial)) return Revoked(info);
    if (!info.role.has_value()) {
      return absl::PermissionDeniedError(
          absl::StrCat("certificate \"", info.name,
                       "\" carries no role; issue one with `espalier pki issue --role ...`"));
    }
    if (MayCall(*info.role, method)) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("certificate \"", info.name, "\" has the role ", RoleName(*info.role), "; ",
                     method.substr(method.rfind('/') + 1), " needs the role ", RolesFor(method)));
  }

  static absl::Status Revoked(const CertificateInfo& info) {
    return absl::UnauthenticatedError(absl::StrCat(
        "certificate \"", info.name, "\" (serial ", info.serial, ") is refused since node ",
        info.name, " was forgotten; to have the machine join again, run `espalier nodes add ",
        info.name, "` and start espalier-agent there with the line that it prints"));
  }

  static std::string NameOf(const std::string& certificate) {
    const absl::StatusOr<CertificateInfo> info = DescribeCertificate(certificate);
    return info.ok() ? info->name : "(no certificate)";
  }

  const ServerTls options_;
  Clock& clock_;
};

// Compares each call's token.
class TokenProcessor : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenProcessor(ServerTls options) : options_(std::move(options)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    const auto given = metadata.find(kTokenHeader);
    if (given == metadata.end()) return Refuse(metadata, "came without a token");
    const absl::string_view token(given->second.data(), given->second.size());
    if (!SameSecret(token, options_.token)) return Refuse(metadata, "has a wrong token");
    return grpc::Status::OK;
  }

 private:
  grpc::Status Refuse(const InputMetadata& metadata, absl::string_view why) const {
    const absl::Status status = absl::UnauthenticatedError(absl::StrCat(
        "the call ", why,
        ": over TCP without TLS, this espalierd answers those who can read the "
        "file `token` in its state folder; name that file with --token, or reach espalierd by its "
        "Unix socket: --coordinator STATE_FOLDER"));
    if (options_.refused) options_.refused("(no certificate)", MethodOf(metadata), status);
    return ToGrpc(status);
  }

  const ServerTls options_;
};

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> WithoutTls(const ServerTls& options) {
  if (!IsLoopback(options.listen)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "refusing to listen on ", options.listen,
        " without TLS: only loopback (127.0.0.1:PORT) is open without credentials. Make them with "
        "`espalier pki init` and `espalier pki issue NAME --role coordinator --address IP`, and "
        "name the files under tls: in the cluster file"));
  }
  if (options.token.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("refusing to listen on ", options.listen, " without TLS and without a token"));
  }
  // Plain TCP; unlike gRPC's insecure credentials they take a processor.
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  credentials->SetAuthMetadataProcessor(std::make_shared<TokenProcessor>(options));
  return credentials;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerTls& options, Clock& clock) {
  RETURN_IF_ERROR(ParseAddress(options.listen).status());
  if (options.identity == nullptr) return WithoutTls(options);
  grpc::experimental::TlsServerCredentialsOptions tls(options.identity->provider());
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::TlsServerCredentials(tls);
  credentials->SetAuthMetadataProcessor(std::make_shared<CertificateProcessor>(options, clock));
  return credentials;
}

void SetServerKeepalive(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveIntervalMs / 2);
}

Caller CallerOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  const std::string certificate = auth == nullptr ? "" : PeerCertificate(*auth);
  if (certificate.empty()) return Caller{.name = "local", .role = std::nullopt};
  const absl::StatusOr<CertificateInfo> info = DescribeCertificate(certificate);
  if (!info.ok()) return Caller{.name = "local", .role = std::nullopt};
  return Caller{.name = info->name,
                .role = info->role,
                .fingerprint = info->fingerprint,
                .serial = info->serial};
}

namespace {

absl::Status CheckName(const Caller& caller, const NodeName& node, Role needed,
                       absl::string_view otherwise) {
  if (!caller.role.has_value() || caller.name == node.text()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "certificate \"", caller.name, "\" speaks for a node of that name alone, not for \"",
      AsUtf8(node.text()), "\"; issue one with `espalier pki issue ", AsUtf8(node.text()),
      " --role ", RoleName(needed), "`", otherwise));
}

}  // namespace

absl::Status CheckSpeaksFor(const Caller& caller, const NodeName& node) {
  return CheckName(caller, node, Role::kWorker, "");
}

absl::Status CheckStartsByHand(const Caller& caller, const NodeName& node) {
  RETURN_IF_ERROR(
      CheckName(caller, node, Role::kTrainer,
                absl::StrCat(", or call the node as the certificate does: --node ", caller.name)));
  if (!caller.role.has_value() || *caller.role == Role::kTrainer) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "certificate \"", caller.name, "\" has the role ", RoleName(*caller.role),
      ", which runs only what espalierd starts; for an mpirun started by hand, issue one with "
      "`espalier pki issue ",
      caller.name, " --role trainer`, or run the job with `espalier submit`"));
}

}  // namespace espalier
