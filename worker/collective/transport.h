// The transport that a job asks of Open MPI: set before MPI starts where mpirun said nothing, and
// read back afterwards, so that no run goes on with less than was asked. Used by
// communication_thread.cc.
#pragma once

#include "absl/status/status.h"
#include "common/config/open_mpi.h"
#include "worker/collective/mpi_world.h"

namespace espalier {

// For a hand-typed mpirun: puts into this process's environment what mpirun's command line and the
// user's environment have not set. Changes the environment only when something is missing. Call it
// while the program has one thread (the environment is not thread-safe); MpiCollective::Start calls
// it again, which then does nothing.
void SetMissingOpenMpiParameters(const OpenMpiSettings& settings);

struct TransportWish {
  OpenMpiSettings settings;
  int ranks = 0;  // 0: any
};
// FAILED_PRECONDITION names the parameter, both values, and where the wrong one may come from.
absl::Status VerifyTransport(const MpiWorld& world, const TransportWish& wish);

}  // namespace espalier
