#include "worker/rollout/rollout_queues.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/shares.h"

namespace espalier {
namespace {

// A meeting costs about a millisecond, and as long as the longest turn of a rank.
constexpr absl::Duration kShortest = absl::Milliseconds(20);
constexpr absl::Duration kLongest = absl::Milliseconds(500);

// Rates of all, of which each gives its part: those of ranks that do not know theirs follow from
// the shares, and from the rates of those that do.
std::vector<RolloutLoad> WithRates(absl::Span<const RolloutLoad> loads,
                                   absl::Span<const int64_t> shares) {
  std::vector<RolloutLoad> all(loads.begin(), loads.end());
  double rate = 0, share = 0;  // of those that know
  for (size_t rank = 0; rank < all.size(); ++rank) {
    all[rank].rate *= all[rank].part;
    if (all[rank].rate <= 0 || shares[rank] == 0) continue;
    rate += all[rank].rate;
    share += static_cast<double>(shares[rank]);
  }
  const double of_a_share = share > 0 ? rate / share : 1;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (loads[rank].rate > 0) continue;
    all[rank].rate = of_a_share * static_cast<double>(shares[rank]);
  }
  return all;
}

// Of all items, a rank's at most: one at least.
int64_t RoomOf(int64_t items, double largest_share) {
  if (largest_share >= 1) return items;
  const double room = std::floor(static_cast<double>(items) * largest_share + 1e-9);
  return std::max<int64_t>(1, static_cast<int64_t>(room));
}

}  // namespace

RolloutQueues::RolloutQueues(int64_t items, absl::Span<const int64_t> shares)
    : items_(items),
      shares_(shares.begin(), shares.end()),
      begun_(shares.size()),
      queues_(shares.size()) {
  int64_t next = 0;
  const std::vector<int64_t> parts = DivideByShares(items, shares);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (int64_t i = 0; i < parts[rank]; ++i) queues_[rank].push_back(next++);
  }
}

int64_t RolloutQueues::waiting() const {
  int64_t waiting = 0;
  for (const std::deque<int64_t>& queue : queues_) waiting += static_cast<int64_t>(queue.size());
  return waiting;
}

void RolloutQueues::Meet(absl::Span<const RolloutLoad> loads) {
  std::vector<int64_t> room;
  for (size_t rank = 0; rank < queues_.size(); ++rank) {
    std::deque<int64_t>& queue = queues_[rank];
    ESPALIER_CHECK(loads[rank].begun <= static_cast<int64_t>(queue.size()),
                   "a rank begins what is in its queue");
    queue.erase(queue.begin(), queue.begin() + loads[rank].begun);
    begun_[rank] += loads[rank].begun;
    room.push_back(RoomOf(items_, loads[rank].largest_share) - begun_[rank]);
  }
  const std::vector<int64_t> wanted = DivideWaiting(waiting(), WithRates(loads, shares_), room);
  std::vector<int64_t> moved;
  for (size_t rank = 0; rank < queues_.size(); ++rank) {
    std::deque<int64_t>& queue = queues_[rank];
    const auto keep = queue.begin() + std::min(wanted[rank], static_cast<int64_t>(queue.size()));
    moved.insert(moved.end(), keep, queue.end());
    queue.erase(keep, queue.end());
  }
  auto next = moved.begin();
  for (size_t rank = 0; rank < queues_.size(); ++rank) {
    while (static_cast<int64_t>(queues_[rank].size()) < wanted[rank]) {
      queues_[rank].push_back(*next++);
    }
  }
}

std::vector<int64_t> DivideWaiting(int64_t waiting, absl::Span<const RolloutLoad> loads,
                                   absl::Span<const int64_t> room) {
  std::vector<int64_t> parts(loads.size());
  const auto ends = [&](size_t rank) {
    return loads[rank].seconds + static_cast<double>(parts[rank] + 1) / loads[rank].rate;
  };
  const auto first_of = [&](const auto& may) {
    std::optional<size_t> first;
    for (size_t rank = 0; rank < loads.size(); ++rank) {
      if (loads[rank].rate <= 0 || !may(rank)) continue;
      if (!first || ends(rank) < ends(*first)) first = rank;
    }
    return first;
  };
  for (; waiting > 0; --waiting) {
    std::optional<size_t> first = first_of([&](size_t rank) { return parts[rank] < room[rank]; });
    if (!first) first = first_of([](size_t) { return true; });
    ++parts[first.value_or(0)];
  }
  return parts;
}

absl::Duration UntilNextMeeting(const RolloutQueues& queues, absl::Span<const RolloutLoad> loads) {
  absl::Duration first = 2 * kLongest;
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    const auto waiting = static_cast<double>(queues.of(rank).size());
    if (loads[rank].running == 0 && waiting == 0) continue;  // there is nothing left for it
    if (loads[rank].rate <= 0) return kShortest;
    first = std::min(first, absl::Seconds(loads[rank].seconds + waiting / loads[rank].rate));
  }
  return std::clamp(first / 2, kShortest, kLongest);
}

}  // namespace espalier
