#include <jemalloc/jemalloc.h>

#include <string>

#include "worker/memory/allocator.h"

// Read by jemalloc when the process starts. One arena: the large blocks are the compute thread's.
// Free pages are kept until ReleaseFreeMemory.
extern "C" {
const char* malloc_conf = "narenas:1,dirty_decay_ms:-1,muzzy_decay_ms:-1";
}

namespace espalier {

// Of all arenas: jemalloc keeps blocks above 8 MiB in one of their own.
void ReleaseFreeMemory() {
  const std::string all = "arena." + std::to_string(MALLCTL_ARENAS_ALL) + ".purge";
  mallctl(all.c_str(), nullptr, nullptr, nullptr, 0);
}

}  // namespace espalier
