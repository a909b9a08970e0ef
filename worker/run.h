// One training worker, from its command line to its exit code: composes the control client, the
// collective and a session. Used by command_line.cc. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/pem_file.h"
#include "worker/ending.h"
#include "worker/train/pace.h"

namespace espalier {

struct WorkerOptions {
  // Launched: coordinator and job_id. External: coordinator and job_file. Standalone: job_file.
  // HOST:PORT or a state folder; ESPALIER_TOKEN_FILE names the token that one may need.
  std::string coordinator;
  std::optional<TlsFiles> tls;
  std::string job_id;
  int64_t generation = 0;
  std::string job_file;
  std::vector<std::string> overrides;  // KEY=VALUE for job_file
  std::string node;                    // empty: the host's name
  int rank_count = 0;                  // 0: as many as mpirun started
  int threads = 0;                     // 0: as the job says
  std::string device;                  // empty: as the job says
  bool warm = false;                   // keep what is trained in shared memory, agent or not
  Pace::Options pace = {};             // for benchmarks
};

// Leaves the process by _exit after a fault of the collective, since MPI could wait for ever then.
WorkerExit RunWorker(const WorkerOptions& options);

}  // namespace espalier
