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
#include "worker/collective/transport.h"

namespace espalier {

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
