// How much memory LibTorch may take on MPS before it throws. Its own limit, 1.7 times what the
// device recommends, is more than the machine has, so that a pass that does not fit makes the
// machine swap instead of running out (which the memory governor learns from). Used by
// worker/session.cc, before the first tensor on the device. Any thread.
#pragma once

#include <cstdint>

namespace espalier {

// Parts of what the device recommends; LibTorch wants low <= high.
struct MpsWatermarks {
  double high = 1;   // an allocation that would pass it throws
  double low = 0.9;  // above it, memory that is only kept is given back
};

// `recommended_bytes`: what the device recommends (recommendedMaxWorkingSetSize); 0: LibTorch
// (before 2.5) does not say, and three quarters of the machine's memory are assumed, the most that
// macOS recommends. `wanted_bytes`: of the job or the node; 0: all. `sharers`: workers of this
// machine.
MpsWatermarks MpsWatermarksFor(int64_t recommended_bytes, int64_t physical_bytes,
                               int64_t wanted_bytes, int sharers);

// Puts them into the environment (PYTORCH_MPS_HIGH_WATERMARK_RATIO and _LOW_), where LibTorch reads
// them once, with its first allocation; what a person has set there stays.
void SetMpsWatermarks(const MpsWatermarks& watermarks);

}  // namespace espalier
