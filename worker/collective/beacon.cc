#include "worker/collective/beacon.h"

#include <utility>

#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr int kBeaconsPerTimeout = 5;
constexpr int kPollsMax = 100;

template <typename Byte>
absl::Span<Byte> BytesOf(PeerReport& state) {
  return {reinterpret_cast<Byte*>(&state), sizeof(state)};
}

}  // namespace

Beacon::Beacon(MpiWorld& world, Options options, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      interval_(options_.failure_timeout / kBeaconsPerTimeout),
      watch_({.rank = world.rank(),
              .ranks = world.size(),
              .failure_timeout = options_.failure_timeout},
             clock.Monotonic()),
      messages_(world.NewMessages()),
      peers_(world.size()),
      next_(clock.Monotonic()) {
  for (int peer = 0; peer < world.size(); ++peer) {
    if (peer != world.rank()) Receive(peer);
  }
}

void Beacon::Receive(int peer) {
  messages_->Receive(BytesOf<std::byte>(peers_[peer].received), peer, kPeerReportTag, [this, peer] {
    watch_.Heard(peer, peers_[peer].received, clock_.Monotonic());
    Receive(peer);
  });
}

absl::Status Beacon::Tick() {
  const absl::Duration now = clock_.Monotonic();
  if (now < next_) return absl::OkStatus();
  next_ = now + interval_;
  for (int i = 0; i < kPollsMax; ++i) {  // more than one may have come from a peer meanwhile
    ASSIGN_OR_RETURN(const int completed, messages_->Poll());
    if (completed == 0) break;
  }
  const PeerReport state = options_.state();
  for (int peer = 0; peer < messages_->size(); ++peer) {
    if (peer == messages_->rank() || peers_[peer].sending) continue;
    peers_[peer].sent = state;
    peers_[peer].sending = true;
    messages_->Send(BytesOf<const std::byte>(peers_[peer].sent), peer, kPeerReportTag,
                    [this, peer] { peers_[peer].sending = false; });
  }
  return absl::OkStatus();
}

void Beacon::Stop() { messages_->CancelAll(); }

}  // namespace espalier
