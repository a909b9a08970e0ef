// FailingAllocator: LibTorch's CPU allocator, of which one allocation fails, or all from one on.
// Used by tests/worker. Allocations of one thread are counted; the others go through.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>

namespace espalier {

// While it lives, allocations of this thread (and of the thread that runs its backward passes,
// which is the same on the CPU) are counted, and the one numbered `failing`, from 1, fails.
class FailingAllocator {
 public:
  explicit FailingAllocator(int64_t failing = -1, bool and_all_after = false);  // -1: none fails
  ~FailingAllocator();
  // Whether that many allocations were made.
  static bool failed();
  // How many allocations of exactly that many bytes were asked for.
  static int64_t count(size_t bytes);
};

}  // namespace espalier
