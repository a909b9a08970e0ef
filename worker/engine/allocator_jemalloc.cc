#include <jemalloc/jemalloc.h>

#include "worker/engine/allocator.h"

// Read by jemalloc when the process starts. One arena: the large blocks are the compute thread's.
// Free pages are kept until ReleaseFreeMemory.
extern "C" {
const char* malloc_conf = "narenas:1,dirty_decay_ms:-1,muzzy_decay_ms:-1";
}

namespace espalier {

void ReleaseFreeMemory() { mallctl("arena.0.purge", nullptr, nullptr, nullptr, 0); }

}  // namespace espalier
