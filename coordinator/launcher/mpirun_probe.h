// Which Open MPI there is, asked of mpirun itself. Used once, when espalierd starts.
// Thread rule: any thread; waits for the program, at most for the bound.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/config/open_mpi.h"

namespace espalier {

struct ProbeOptions {
  // Path or name in PATH.
  std::string mpirun;
  // A file that may be written; removed again.
  std::string scratch;
  absl::Duration limit = absl::Seconds(20);
};

// NOT_FOUND: no such program; DEADLINE_EXCEEDED: it does not end; UNIMPLEMENTED: not an Open MPI
// that Espalier knows.
absl::StatusOr<OpenMpiVersion> ProbeOpenMpi(const ProbeOptions& options, Clock& clock);

}  // namespace espalier
