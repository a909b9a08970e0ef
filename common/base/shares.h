// Shares: a whole number of things divided by weights. Used by coordinator/planner and
// worker/train/plan.cc, so that a job's sequences are divided alike with a coordinator and without
// one; and by worker/train/evaluate.cc and worker/rollout. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace espalier {

// `total` in parts proportional to `shares` (none negative, not all 0), rounded down; what is left
// over goes one each to the largest fractions, of equal ones to the first. The parts add up to
// `total`, and a share of 0 gets nothing.
inline std::vector<int64_t> DivideByShares(int64_t total, absl::Span<const int64_t> shares) {
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  ESPALIER_CHECK(sum > 0, "a share is above 0");
  std::vector<int64_t> parts;
  for (const int64_t share : shares) parts.push_back(total * share / sum);
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return total * shares[a] % sum > total * shares[b] % sum;
  });
  int64_t left = total - std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (size_t i = 0; left > 0; ++i, --left) ++parts[order[i]];
  return parts;
}

}  // namespace espalier
