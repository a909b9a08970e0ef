#include "worker/collective/partition.h"

#include <cstring>

namespace espalier {

void SumInRankOrder(absl::Span<const float* const> sources, float* out, int64_t n) {
  constexpr int64_t kBlock = 2048;  // fits the first-level cache
  float sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    std::memcpy(sum, sources[0] + begin, size * sizeof(float));
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const float* source = sources[rank] + begin;
      for (int64_t i = 0; i < size; ++i) sum[i] += source[i];
    }
    std::memcpy(out + begin, sum, size * sizeof(float));
  }
}

}  // namespace espalier
