#include "tests/bench/token_ids.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace espalier::bench {
namespace {

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t Next(uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<int64_t> TokenIds(int64_t count, int64_t vocabulary, uint64_t seed) {
  std::vector<uint64_t> ends;  // of the intervals of the ids
  uint64_t total = 0;
  for (int64_t k = 0; k < vocabulary; ++k) {
    ends.push_back(total += (uint64_t{1} << 32) / static_cast<uint64_t>(k + 1));
  }
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), Next(seed) % total);
    ids.push_back(end - ends.begin());
  }
  return ids;
}

std::string DigestOf(const std::vector<int64_t>& ids) {
  uint64_t value = 0xCBF29CE484222325U;
  for (const int64_t id : ids) value = (value ^ static_cast<uint64_t>(id)) * 0x100000001B3U;
  return absl::StrFormat("%016x", value);
}

}  // namespace espalier::bench
