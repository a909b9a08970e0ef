// Announcements: what every rank tells those it sends to before an operation's bytes, so that ranks
// that have started different operations end with an error that names both, and not with wrong sums
// or a wait for ever. One small message per peer, for which no payload waits.
// Used by exchange.h. Communication thread only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/collective.h"
#include "worker/collective/layout.h"
#include "worker/collective/messages.h"

namespace espalier {

// An operation as its ranks must agree on it; the bytes that travel.
struct Announcement {
  int64_t number = 0;  // of the operation, from 1
  int64_t bytes = 0;
  uint64_t parts = 0;  // a hash of their ends
  int32_t kind = 0;
  int32_t wire = 0;
  int32_t root = 0;
  int32_t unused = 0;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

// "an all-reduce of 400 bytes as bf16".
std::string Describe(const Announcement& announcement);

class Announcements {
 public:
  // `number`: of the operation among all of this world.
  Announcements(Messages& messages, const Operation& operation, const Layout& layout,
                int64_t number);
  // To all that get bytes from this rank, and from all whose bytes it gets.
  void Exchange();
  // FAILED_PRECONDITION when one has come that differs from this rank's.
  const absl::Status& mismatch() const { return mismatch_; }

 private:
  void Compare(int peer);

  Messages& messages_;
  Announcement mine_;
  std::vector<Announcement> theirs_;
  bool one_way_;  // only the root sends
  absl::Status mismatch_;
};

}  // namespace espalier
