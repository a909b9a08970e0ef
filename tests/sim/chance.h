// Chance: all the luck of a simulated run, from its seed. Used by scene.h. One thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/random.h"

namespace espalier::sim {

class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}
  // True about once in `n` calls.
  bool OneIn(uint64_t n) { return random_.Below(n) == 0; }
  // Uniform in [least, most].
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_.Below(static_cast<uint64_t>(most - least + 1)));
  }
  absl::Duration Milliseconds(int64_t least, int64_t most) {
    return absl::Milliseconds(Between(least, most));
  }

 private:
  SplitMix64 random_;
};

}  // namespace espalier::sim
