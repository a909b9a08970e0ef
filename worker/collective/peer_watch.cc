#include "worker/collective/peer_watch.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

// Payload of an error: the ranks as text, "0,3".
constexpr char kSilentPeers[] = "espalier/silent-peers";

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

PeerWatch::PeerWatch(const Options& options, absl::Duration now)
    : options_(options),
      peers_(options.ranks, Peer{.state = {}, .heard_at = now, .worked_at = now}) {}

void PeerWatch::Heard(int peer, const PeerReport& state, absl::Duration now) {
  Peer& entry = peers_[peer];
  entry.heard_at = now;
  if (state == entry.state) return;
  entry.state = state;
  entry.worked_at = now;
}

absl::Status PeerWatch::CheckWait(const Wait& wait, absl::Duration now) const {
  absl::Duration last = wait.moved_at;
  for (int peer = 0; peer < options_.ranks; ++peer) {
    if (peer != options_.rank) last = std::max(last, peers_[peer].worked_at);
  }
  if (now - last <= options_.failure_timeout) return absl::OkStatus();
  return TooLong(wait, now);
}

absl::Status PeerWatch::TooLong(const Wait& wait, absl::Duration now) const {
  std::vector<int> silent, absent, idle;
  for (int peer : wait.peers) {
    if (now - peers_[peer].heard_at > options_.failure_timeout) {
      silent.push_back(peer);
    } else if (peers_[peer].state.operations < wait.operation) {
      absent.push_back(peer);
    } else {
      idle.push_back(peer);
    }
  }
  std::string text = absl::StrCat("rank ", options_.rank, " waited ",
                                  absl::FormatDuration(options_.failure_timeout),
                                  " in exchange operation ", wait.operation);
  if (!silent.empty()) absl::StrAppend(&text, "; silent: ", Ranks(silent));
  if (!absent.empty()) absl::StrAppend(&text, "; not come to it, nor working: ", Ranks(absent));
  if (!idle.empty()) absl::StrAppend(&text, "; waiting in it as well: ", Ranks(idle));
  absl::Status status = absl::DeadlineExceededError(text);
  if (!silent.empty()) status.SetPayload(kSilentPeers, absl::Cord(absl::StrJoin(silent, ",")));
  return status;
}

std::vector<int32_t> SilentPeers(const absl::Status& status) {
  std::vector<int32_t> peers;
  const std::string text(status.GetPayload(kSilentPeers).value_or(absl::Cord()));
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int32_t peer = 0;
    if (absl::SimpleAtoi(word, &peer)) peers.push_back(peer);
  }
  return peers;
}

}  // namespace espalier
