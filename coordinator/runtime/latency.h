// Latency: durations counted in buckets, for the journal's metric. Plain value.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace espalier {

class Latency {
 public:
  // Upper bounds of the buckets in seconds; one more bucket holds the rest.
  static constexpr std::array<double, 12> kBounds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                                     0.05,   0.1,   0.25,  1,     2.5,  10};

  void Add(absl::Duration duration) {
    const double seconds = absl::ToDoubleSeconds(duration);
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++counts_[bucket];
    sum_ += seconds;
  }
  // Not cumulative; the last one is above every bound.
  const std::array<int64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum_seconds() const { return sum_; }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

}  // namespace espalier
