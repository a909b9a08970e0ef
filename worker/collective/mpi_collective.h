// MpiCollective: the exchange over MPI. A communication thread of its own starts MPI, makes every
// call of it, and ends it; other threads only queue operations.
// Used by worker/run.cc; the contract is that of Collective. The exchange is documented in
// worker/collective/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
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
  // Bytes of one message (4 to 2^30), and messages in flight per peer and direction (1 to 4096).
  int64_t chunk_bytes = 256 << 10;
  int depth = 8;
  // How long the ranks may wait for each other to start.
  absl::Duration start_timeout = absl::Minutes(1);
  // An operation is DEADLINE_EXCEEDED when for so long no message of it was completed and no other
  // rank has worked.
  absl::Duration failure_timeout = absl::Seconds(10);
  // Grows whenever the compute thread of this rank does something (the sum of the counters of its
  // ProgressBoard). The ranks tell each other, so that a rank with a long shard may be waited for.
  // Called from the communication thread; empty: only messages count.
  std::function<int64_t()> work;
};

class MpiCollective : public Collective {
 public:
  using Collective::Start;
  // Blocks until MPI has started on all ranks and the parameters are verified. After an error the
  // process must leave by _exit with a code that is not 0, upon which mpirun ends the other ranks.
  static absl::StatusOr<std::unique_ptr<MpiCollective>> Start(const MpiOptions& options,
                                                              Clock& clock);
  // TCP links per peer that this process has read back, for reports.
  virtual int links() const = 0;
  // Ends MPI together with all other ranks, after the last operation. When this, or any operation
  // before it, is not OK, the process must leave by _exit as above: MPI could wait for ever.
  virtual absl::Status Finish(absl::Duration timeout) = 0;
};

}  // namespace espalier
