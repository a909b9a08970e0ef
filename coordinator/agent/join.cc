#include "coordinator/agent/join.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/rpc/call.h"
#include "common/rpc/certificate.h"
#include "common/rpc/channel.h"
#include "common/rpc/pki.h"
#include "espalier/v1/join.grpc.pb.h"

namespace espalier {
namespace {

constexpr char kFolder[] = "identity";
// Of a Join that was killed.
constexpr char kUnfinished[] = "identity.";
constexpr char kPlace[] = "node";
constexpr int64_t kPlaceBytesMax = 4096;

TlsFiles FilesIn(const std::string& folder) {
  return {
      .ca = folder + "/ca.crt", .certificate = folder + "/node.crt", .key = folder + "/node.key"};
}

absl::Status CheckNotJoined(const JoinOptions& options) {
  ASSIGN_OR_RETURN(const auto identity, ReadIdentity(options.state_dir));
  if (!identity) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "this machine has joined ", identity->coordinator, " as node ", identity->node,
      " already: start it with `espalier-agent run`; to have it join anew, run `espalier nodes "
      "forget ",
      identity->node, "` and remove ", options.state_dir, "/", kFolder,
      ", or give another folder with --state-dir"));
}

// A folder of which nobody knows yet, for its owner only.
absl::StatusOr<std::string> MakeFolder(const std::string& state_dir) {
  RETURN_IF_ERROR(MakeDurableDirectory(PosixFileSystem(), state_dir));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(state_dir));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kUnfinished)) continue;
    RETURN_IF_ERROR(PosixFileSystem().Remove(JoinPath(state_dir, name)));
  }
  std::string folder = absl::StrCat(state_dir, "/", kUnfinished, "XXXXXX");
  if (mkdtemp(folder.data()) != nullptr) return folder;  // mode 0700
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a folder in ", state_dir));
}

absl::StatusOr<std::string> AskForCertificate(const JoinOptions& options, const std::string& ca,
                                              const std::string& signing_request, Clock& clock) {
  ASSIGN_OR_RETURN(const auto channel, MakeStrangerChannel(options.coordinator.address, ca));
  v1::JoinRequest request;
  request.set_node(options.node);
  request.set_token(options.token);
  request.set_signing_request(signing_request);
  const TlsFiles files = FilesIn(absl::StrCat(options.state_dir, "/", kFolder));
  request.mutable_files()->set_ca(files.ca);
  request.mutable_files()->set_certificate(files.certificate);
  request.mutable_files()->set_key(files.key);
  request.set_worker(options.worker);
  request.set_unix_seconds(absl::ToDoubleSeconds(clock.Now() - absl::UnixEpoch()));
  v1::JoinResponse response;
  grpc::ClientContext context;
  SetDeadline(context, options.timeout);
  const absl::Status answered =
      FromGrpc(v1::JoinService::NewStub(channel)->Join(&context, request, &response));
  if (!answered.ok()) {
    return absl::Status(answered.code(), absl::StrCat("espalierd at ", options.coordinator.address,
                                                      " refused: ", answered.message()));
  }
  return response.certificate();
}

// What lies in `folder` becomes the identity, at once.
absl::Status Publish(const std::string& folder, const std::string& state_dir) {
  RETURN_IF_ERROR(PosixFileSystem().SyncDirectory(folder));
  RETURN_IF_ERROR(PosixFileSystem().Rename(folder, absl::StrCat(state_dir, "/", kFolder)));
  return PosixFileSystem().SyncDirectory(state_dir);
}

// That it is what was asked for: of this CA, for this key and this name.
absl::Status CheckCertificate(const TlsFiles& files, const std::string& node, absl::Time now) {
  ASSIGN_OR_RETURN(const TlsIdentity identity, LoadTls(files, CertificateUse::kClient, now));
  if (identity.info.name == node) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("espalierd made a certificate for \"",
                                                 identity.info.name, "\" instead of \"", node,
                                                 "\"; nothing was kept"));
}

}  // namespace

absl::StatusOr<NodeIdentity> Join(const JoinOptions& options, Clock& clock) {
  RETURN_IF_ERROR(CheckNotJoined(options));
  ASSIGN_OR_RETURN(const std::string folder, MakeFolder(options.state_dir));
  const auto remover = absl::MakeCleanup([&folder] {
    std::error_code ignored;  // after success it has another name
    std::filesystem::remove_all(folder, ignored);
  });
  const TlsFiles files = FilesIn(folder);
  ASSIGN_OR_RETURN(const KeyRequest key, MakeKeyRequest(options.node));
  ASSIGN_OR_RETURN(const std::string ca,
                   FetchPinnedCa(options.coordinator, clock, options.timeout));
  const std::string place = absl::StrCat(options.node, "\n", options.coordinator.address, "\n");
  RETURN_IF_ERROR(WritePemFile(files.key, key.key, PemKind::kKey, Overwrite::kNever));
  RETURN_IF_ERROR(WritePemFile(files.ca, ca, PemKind::kKey, Overwrite::kNever));
  RETURN_IF_ERROR(
      WritePemFile(absl::StrCat(folder, "/", kPlace), place, PemKind::kKey, Overwrite::kNever));
  ASSIGN_OR_RETURN(const std::string certificate,
                   AskForCertificate(options, ca, key.request, clock));
  RETURN_IF_ERROR(WritePemFile(files.certificate, certificate, PemKind::kKey, Overwrite::kNever));
  RETURN_IF_ERROR(CheckCertificate(files, options.node, clock.Now()));
  RETURN_IF_ERROR(Publish(folder, options.state_dir));
  ASSIGN_OR_RETURN(std::optional<NodeIdentity> identity, ReadIdentity(options.state_dir));
  if (!identity) return absl::InternalError("the identity that was written is not there");
  return *std::move(identity);
}

absl::StatusOr<std::optional<NodeIdentity>> ReadIdentity(const std::string& state_dir) {
  const std::string folder = absl::StrCat(state_dir, "/", kFolder);
  const absl::StatusOr<std::string> text =
      PosixFileSystem().Read(absl::StrCat(folder, "/", kPlace), kPlaceBytesMax);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  RETURN_IF_ERROR(text.status());
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  if (lines.size() < 2) {
    return absl::DataLossError(absl::StrCat(folder, "/", kPlace,
                                            " does not name a node and a coordinator; remove ",
                                            folder, " and join again"));
  }
  return NodeIdentity{.node = lines[0], .coordinator = lines[1], .files = FilesIn(folder)};
}

}  // namespace espalier
