// MpiCollective: the exchange over MPI. A communication thread of its own starts MPI, makes every
// call of it, and ends it; other threads only queue operations. It polls, with growing pauses when
// nothing moves, so that a waiting rank leaves the processor to others.
// Used by worker/run.cc; the contract is that of Collective. The exchange is documented in
// worker/collective/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/open_mpi.h"
#include "worker/collective/collective.h"

namespace espalier {

struct MpiOptions {
  // What the job asks of Open MPI. Set through the environment where mpirun gave no value, read
  // back after the start; a different value is FAILED_PRECONDITION and the run is refused.
  OpenMpiSettings transport;
  // Ranks the job was launched with; another size is FAILED_PRECONDITION. 0: any.
  int ranks = 0;
  // Bytes of one message, and messages in flight per peer and direction.
  int64_t chunk_bytes = 8 << 20;
  int depth = 4;
  // Without any message completed for so long, an operation is DEADLINE_EXCEEDED.
  absl::Duration failure_timeout = absl::Seconds(10);
};

class MpiCollective : public Collective {
 public:
  // Blocks until MPI has started on all ranks and the parameters are verified.
  static absl::StatusOr<std::unique_ptr<MpiCollective>> Start(const MpiOptions& options,
                                                              Clock& clock);
  // TCP links per peer that this process has read back, for reports.
  virtual int links() const = 0;
  // Ends MPI together with all other ranks, after the last operation. After a failed operation it
  // does nothing: the process must then leave by _exit, since MPI could wait for ever.
  virtual void Finish() = 0;
};

}  // namespace espalier
