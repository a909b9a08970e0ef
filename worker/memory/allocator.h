// The memory allocator of the process: jemalloc where CMake finds it (Linux), else the system's.
// jemalloc keeps a training step's large blocks without gaps, and without giving them back and
// faulting them in again every step. Used by memory_meter.cc, worker/state/warm_in_place.cc and
// worker/session.cc. Any thread.
#pragma once

namespace espalier {

// Gives free memory that the allocator keeps back to the system. Takes milliseconds, and the next
// allocations fault their pages in again: call it now and then, off the critical path.
void ReleaseFreeMemory();

}  // namespace espalier
