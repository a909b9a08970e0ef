// ProgressBoard: where the compute thread writes what it is doing and the control thread reads it
// to tell the coordinator (invariant "progress is liveness": these counters, not a heartbeat
// thread, say that a worker lives). Every member may be used from any thread. Used by
// control_client.h, worker/ending.h, worker/sync/together.h and worker/rollout.
#pragma once

#include <atomic>
#include <cstdint>

#include "espalier/v1/worker.pb.h"

namespace espalier {

struct ProgressBoard {
  // Committed steps.
  std::atomic<int64_t> step{0};
  std::atomic<v1::Phase> phase{v1::PHASE_STARTING};
  // Collective operations completed.
  std::atomic<int64_t> collective{0};
  // Micro-batches, chunks of a load or an evaluation completed.
  std::atomic<int64_t> work{0};
  // In a pass: the layer at work, from 1 on; one more than there are: the loss. 0: in none.
  std::atomic<int64_t> layer{0};

  void Enter(v1::Phase next) {
    phase.store(next, std::memory_order_relaxed);
    layer.store(0, std::memory_order_relaxed);
  }
  void At(int64_t next) { layer.store(next, std::memory_order_relaxed); }
  void Worked() { work.fetch_add(1, std::memory_order_relaxed); }
};

}  // namespace espalier
