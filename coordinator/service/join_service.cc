#include "coordinator/service/join_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/rules.h"
#include "common/observe/log.h"
#include "common/rpc/call.h"

namespace espalier {
namespace {

// Tokens, names and paths are far shorter, signing requests too.
constexpr size_t kTextBytesMax = 1024;
constexpr size_t kRequestBytesMax = 16384;

// The host of "ipv4:10.77.0.2:40812": ports change from call to call.
std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

absl::Status CheckRequest(const v1::JoinRequest& request) {
  if (!IsName(request.node())) {
    return absl::InvalidArgumentError(absl::StrCat("the node's name is '",
                                                   AsUtf8(request.node().substr(0, kTextBytesMax)),
                                                   "'; allowed: ", kNameRule));
  }
  const v1::TlsSpec& files = request.files();
  for (const std::string* text :
       {&request.token(), &files.ca(), &files.certificate(), &files.key(), &request.worker()}) {
    if (text->size() > kTextBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a token or path of the request has ",
                                                     text->size(), " bytes; at most ",
                                                     kTextBytesMax, " are allowed"));
    }
  }
  if (request.signing_request().size() > kRequestBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the signing request has ", request.signing_request().size(),
                     " bytes; at most ", kRequestBytesMax, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Enrolment::Certificate> JoinService::Prepare(const v1::JoinRequest& request) const {
  RETURN_IF_ERROR(CheckRequest(request));
  RETURN_IF_ERROR(CheckClock(request.unix_seconds(), clock_.Now()));
  return enrolment_.Certify(NodeName(request.node()), request.signing_request());
}

void JoinService::Finish(grpc::ServerUnaryReactor* reactor, const std::string& peer,
                         const std::string& node, const absl::Status& status) {
  if (status.ok()) {
    LogInfo(absl::StrCat("node ", node, " has joined from ", peer));
  } else {
    limit_.Failed(HostOf(peer), clock_.Monotonic());
    LogWarning(absl::StrCat("refused to let ", peer, " join: ", status.message()));
  }
  reactor->Finish(ToGrpc(status));
}

grpc::ServerUnaryReactor* JoinService::Join(grpc::CallbackServerContext* context,
                                            const v1::JoinRequest* request,
                                            v1::JoinResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::string peer = context->peer();
  if (const absl::Duration wait = limit_.WaitOf(HostOf(peer), clock_.Monotonic());
      wait > absl::ZeroDuration()) {
    reactor->Finish(ToGrpc(absl::ResourceExhaustedError(
        absl::StrCat("too many attempts to join from this address have failed; try again in ",
                     absl::FormatDuration(absl::Ceil(wait, absl::Seconds(1)))))));
    return reactor;
  }
  absl::StatusOr<Enrolment::Certificate> certificate = Prepare(*request);
  if (!certificate.ok()) {
    Finish(reactor, peer, "", certificate.status());
    return reactor;
  }
  NodeJoined joined = {.node = NodeName(request->node()),
                       .token_sha256 = Sha256Hex(request->token()),
                       .certificate = certificate->fingerprint,
                       .serial = certificate->serial,
                       .files = request->files(),
                       .worker = request->worker()};
  const auto answer = [this, reactor, response, peer, node = request->node(),
                       pem = std::move(certificate->pem)](const absl::StatusOr<Answer>& decided) {
    if (decided.ok()) response->set_certificate(pem);
    Finish(reactor, peer, node, decided.status());
  };
  if (!inbox_.Put(OperatorCall{std::move(joined), answer})) {
    reactor->Finish(ToGrpc(absl::UnavailableError(
        "espalierd has too many requests waiting, or is stopping; try again")));
  }
  return reactor;
}

}  // namespace espalier
