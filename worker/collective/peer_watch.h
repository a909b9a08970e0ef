// PeerWatch: what a rank knows of the others' lives from the small counters they send each other,
// and whether a wait has lasted too long. A peer that computes may be waited for as long as its
// counter grows; that it still sends is not enough (progress is liveness).
// Used by beacon.h, communication_thread.cc and worker/run.cc. Pure: `now` is an argument. One
// thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace espalier {

// What a rank tells the others of itself.
struct PeerReport {
  // See MpiOptions::work.
  int64_t work = 0;
  // Operations that its compute thread has started.
  int64_t operations = 0;
  friend bool operator==(const PeerReport&, const PeerReport&) = default;
};

class PeerWatch {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    absl::Duration failure_timeout;
  };
  PeerWatch(const Options& options, absl::Duration now);

  void Heard(int peer, const PeerReport& state, absl::Duration now);

  // A wait for messages, as it stands.
  struct Wait {
    int64_t operation = 0;  // from 1
    std::set<int> peers;    // whose messages are missing
    absl::Duration moved_at;
  };
  // DEADLINE_EXCEEDED when nothing has moved and nobody else has worked for the failure timeout;
  // says which of the peers are silent (SilentPeers), which have not come to the operation, which
  // are idle.
  absl::Status CheckWait(const Wait& wait, absl::Duration now) const;

 private:
  struct Peer {
    PeerReport state;
    absl::Duration heard_at;
    absl::Duration worked_at;
  };
  absl::Status TooLong(const Wait& wait, absl::Duration now) const;

  const Options options_;
  std::vector<Peer> peers_;
};

// The peers that an error of CheckWait calls silent; of any other status none.
std::vector<int32_t> SilentPeers(const absl::Status& status);

}  // namespace espalier
