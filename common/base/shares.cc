#include "common/base/shares.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace espalier {

std::vector<int64_t> DivideByShares(int64_t total, absl::Span<const int64_t> shares) {
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
