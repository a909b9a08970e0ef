// RolloutQueues: which rank samples what. Every rank keeps the same ones: numbers of items, in a
// queue for each rank. What a rank has begun stays its own; the rest moves, whenever the ranks
// meet, from those that would finish last to those that would finish first, since nobody knows how
// long a completion becomes, nor how fast a machine is. Results do not depend on it. Used by
// rollout_engine.h. Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace espalier {

// What a rank tells of itself when the ranks meet.
struct RolloutLoad {
  int64_t begun = 0;    // items that it has taken from the front of its queue since they met last
  int64_t running = 0;  // items that it has begun and not ended
  double seconds = 0;   // until these are ended, as far as it can tell
  double rate = 0;      // items that it ends in a second; 0: it does not know yet
  // What it is to do at most: of what it could by its rate, and of all items.
  double part = 1;
  double largest_share = 1;
};

class RolloutQueues {
 public:
  // Items [0, items), in runs by shares (none negative, not all 0).
  RolloutQueues(int64_t items, absl::Span<const int64_t> shares);

  // The ranks have begun what they say. Of what is left each gets so much that all end as early as
  // can be within their limits; what moves is taken from the end of a queue and put at the end of
  // another. As long as a rank does not know its rate, the shares say it, which know of limits.
  void Meet(absl::Span<const RolloutLoad> loads);

  // What a rank has not begun, in order.
  const std::deque<int64_t>& of(size_t rank) const { return queues_[rank]; }
  // Items that nobody has begun.
  int64_t waiting() const;

 private:
  int64_t items_;
  std::vector<int64_t> shares_;
  std::vector<int64_t> begun_;
  std::vector<std::deque<int64_t>> queues_;
};

// `waiting` items, given one after the other to the rank that would have ended it first: how many
// each gets, of which there are no more than `room`, as long as any has some. A rank without a rate
// gets none, unless none has one: then the first gets all.
std::vector<int64_t> DivideWaiting(int64_t waiting, absl::Span<const RolloutLoad> loads,
                                   absl::Span<const int64_t> room);

// How long the ranks work before they meet again: shorter, the sooner one of them has nothing left.
absl::Duration UntilNextMeeting(const RolloutQueues& queues, absl::Span<const RolloutLoad> loads);

}  // namespace espalier
