// How the elements of an operation are cut up: one part per rank, chunks within a part. Pure
// functions of sizes, so that all ranks cut alike. Used by layout.h and worker/sync. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace espalier {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Where the parts of a span end, one end per rank: rank r's part goes from the end of rank r - 1's
// (0 for rank 0) to its own. Never decreasing; parts may be empty, and the last end is the size.
using PartEnds = std::vector<int64_t>;

inline Range PartOf(const PartEnds& ends, int rank) {
  return {.begin = rank == 0 ? 0 : ends[rank - 1], .end = ends[rank]};
}

// The part of rank `rank` where n elements are divided as equally as possible.
inline Range EqualPart(int64_t n, int rank, int ranks) {
  return {.begin = n / ranks * rank + std::min<int64_t>(rank, n % ranks),
          .end = n / ranks * (rank + 1) + std::min<int64_t>(rank + 1, n % ranks)};
}
inline PartEnds EqualParts(int64_t n, int ranks) {
  PartEnds ends(ranks);
  for (int rank = 0; rank < ranks; ++rank) ends[rank] = EqualPart(n, rank, ranks).end;
  return ends;
}

// All n elements are rank `owner`'s.
inline PartEnds AllOf(int64_t n, int owner, int ranks) {
  PartEnds ends(ranks, 0);
  std::fill(ends.begin() + owner, ends.end(), n);
  return ends;
}

// Whether `ends` are parts of n elements for so many ranks.
inline bool AreParts(const PartEnds& ends, int64_t n, int ranks) {
  return static_cast<int>(ends.size()) == ranks && ends.front() >= 0 && ends.back() == n &&
         std::is_sorted(ends.begin(), ends.end());
}

inline int64_t ChunkCount(int64_t n, int64_t chunk) { return (n + chunk - 1) / chunk; }

// Chunk `index` of `range`.
inline Range ChunkOf(const Range& range, int64_t chunk, int64_t index) {
  const int64_t begin = range.begin + index * chunk;
  return {.begin = begin, .end = std::min(begin + chunk, range.end)};
}

}  // namespace espalier
