// How an all-reduce is cut up: one piece of the elements per rank, chunks within a piece. Pure
// functions of sizes, shared by the implementations of Collective. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The elements of [0, n) that rank `rank` of `ranks` adds up.
inline Range PieceOf(int64_t n, int rank, int ranks) {
  return {.begin = n / ranks * rank + std::min<int64_t>(rank, n % ranks),
          .end = n / ranks * (rank + 1) + std::min<int64_t>(rank + 1, n % ranks)};
}

inline int64_t ChunkCount(int64_t n, int64_t chunk) { return (n + chunk - 1) / chunk; }

// Chunk `index` of `range`.
inline Range ChunkOf(const Range& range, int64_t chunk, int64_t index) {
  const int64_t begin = range.begin + index * chunk;
  return {.begin = begin, .end = std::min(begin + chunk, range.end)};
}

}  // namespace espalier
