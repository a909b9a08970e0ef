// Shares: a whole number of things divided by weights. Used by coordinator/core/planner.cc and
// worker/train/plan.cc, so that a job's sequences are divided alike with a coordinator and without
// one. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// `total` in parts proportional to `shares` (none negative, not all 0), rounded down; what is left
// over goes one each to the largest fractions, of equal ones to the first. The parts add up to
// `total`, and a share of 0 gets nothing.
std::vector<int64_t> DivideByShares(int64_t total, absl::Span<const int64_t> shares);

}  // namespace espalier
