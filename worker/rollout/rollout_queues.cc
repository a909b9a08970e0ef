#include "worker/rollout/rollout_queues.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/shares.h"

namespace espalier {
namespace {

// A meeting costs about a millisecond, and as long as the longest turn of a rank.
constexpr absl::Duration kShortest = absl::Milliseconds(20);
constexpr absl::Duration kLongest = absl::Milliseconds(500);

// Rates of all: those of ranks that do not know theirs follow from the shares, and from the rates
// of those that do.
std::vector<RolloutLoad> WithRates(absl::Span<const RolloutLoad> loads,
                                   absl::Span<const int64_t> shares) {
  double rate = 0, share = 0;  // of those that know
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    if (loads[rank].rate <= 0 || shares[rank] == 0) continue;
    rate += loads[rank].rate;
    share += static_cast<double>(shares[rank]);
  }
  const double of_a_share = share > 0 ? rate / share : 1;
  std::vector<RolloutLoad> all(loads.begin(), loads.end());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].rate > 0) continue;
    all[rank].rate = of_a_share * static_cast<double>(shares[rank]);
  }
  return all;
}

}  // namespace

RolloutQueues::RolloutQueues(int64_t items, absl::Span<const int64_t> shares)
    : shares_(shares.begin(), shares.end()), queues_(shares.size()) {
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
  for (size_t rank = 0; rank < queues_.size(); ++rank) {
    std::deque<int64_t>& queue = queues_[rank];
    ESPALIER_CHECK(loads[rank].begun <= static_cast<int64_t>(queue.size()),
                   "a rank begins what is in its queue");
    queue.erase(queue.begin(), queue.begin() + loads[rank].begun);
  }
  const std::vector<int64_t> wanted = DivideWaiting(waiting(), WithRates(loads, shares_));
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

std::vector<int64_t> DivideWaiting(int64_t waiting, absl::Span<const RolloutLoad> loads) {
  std::vector<int64_t> parts(loads.size());
  const auto ends = [&](size_t rank) {
    return loads[rank].seconds + static_cast<double>(parts[rank] + 1) / loads[rank].rate;
  };
  for (; waiting > 0; --waiting) {
    size_t first = 0;
    for (size_t rank = 1; rank < loads.size(); ++rank) {
      const bool better = loads[first].rate <= 0 || ends(rank) < ends(first);
      if (loads[rank].rate > 0 && better) first = rank;
    }
    ++parts[first];
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
