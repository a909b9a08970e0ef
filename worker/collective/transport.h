// The transport that a job asks of Open MPI: set before MPI starts where mpirun said nothing, and
// read back afterwards, so that no run goes on with less than was asked. Used by
// communication_thread.h, mpi_collective.h and worker/run.cc.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/open_mpi.h"
#include "worker/collective/mpi_world.h"

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

// For a hand-typed mpirun: puts into this process's environment what mpirun's command line and the
// user's environment have not set. Changes the environment only when something is missing. Call it
// while the program has one thread (the environment is not thread-safe); MpiCollective::Start calls
// it again, which then does nothing. Ranks that are all on this host meet on the loopback unless
// somebody chose networks: Open MPI 5 finds no way between them otherwise.
void SetMissingOpenMpiParameters(const OpenMpiSettings& settings, bool one_host = false);

struct TransportWish {
  OpenMpiSettings settings;
  int ranks = 0;  // 0: any
};
// FAILED_PRECONDITION names the parameter, both values, and where the wrong one may come from.
absl::Status VerifyTransport(const MpiWorld& world, const TransportWish& wish);

}  // namespace espalier
