#include "tests/sim/newcomer.h"

#include "absl/strings/str_cat.h"

namespace espalier::sim {

void Newcomer::After(int64_t least_ms, int64_t most_ms, void (Newcomer::*next)()) {
  scene_.timeline.After(scene_.chance.Milliseconds(least_ms, most_ms),
                        [this, next] { (this->*next)(); });
}

void Newcomer::Begin() { After(0, 20000, &Newcomer::Invite); }

void Newcomer::Invite() {
  if (member_) return;
  token_.clear();
  NodeInvited request;
  request.spec.set_name(node().text());
  request.token_sha256 = absl::StrCat(node().text(), "-token-", ++tokens_);
  asks_(request, [this, token = request.token_sha256](const absl::StatusOr<Answer>& answer) {
    if (answer.ok()) token_ = token;
  });
  After(200, 8000, &Newcomer::Join);
}

void Newcomer::Join() {
  if (member_) return;
  if (token_.empty()) return Forget();  // the answer was lost, or it is a node already
  NodeJoined request;
  request.node = node();
  request.token_sha256 = token_;
  request.serial = absl::StrCat(node().text(), "-serial-", ++serials_);
  request.certificate = request.serial;
  const auto answered = [this, token = token_, serial = request.serial](const auto& answer) {
    OnJoined(token, serial, answer);
  };
  asks_(request, answered);
  // Somebody else has seen the token.
  if (scene_.chance.OneIn(3)) asks_(request, answered);
  After(2000, 6000, &Newcomer::Join);
}

void Newcomer::OnJoined(const std::string& token, const std::string& serial,
                        const absl::StatusOr<Answer>& answer) {
  if (!answer.ok()) {
    if (!member_ && token == token_) token_.clear();
    return;
  }
  if (!used_.insert(token).second) scene_.Break(absl::StrCat("two machines joined with ", token));
  if (token != token_) return;
  member_ = true;
  serial_ = serial;
  agent_.Begin(serial);
  if (scene_.chance.OneIn(2)) After(3000, 60000, &Newcomer::Forget);
}

void Newcomer::Forget() {
  // What was asked for and never answered is asked again until it is.
  if (!scene_.faults && member_ && !leaves_) return;
  leaves_ = member_;
  NodeForgotten request;
  request.node = node();
  asks_(request, [this](const absl::StatusOr<Answer>& answer) {
    leaves_ = false;
    if (!answer.ok() && !absl::IsNotFound(answer.status())) return;
    if (member_) scene_.refused.insert(serial_);
    member_ = false;
  });
  // Held by a job, or nobody has heard it; else it comes again, and its old agent tries meanwhile.
  After(2000, 10000, member_ ? &Newcomer::Forget : &Newcomer::Invite);
}

}  // namespace espalier::sim
