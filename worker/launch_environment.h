// The environment of a worker: what mpirun tells the processes it starts, read before MPI starts;
// and what libraries read once, when the program is loaded, which is set for the user by starting
// the program again in its place. Used by worker/run.cc,
// worker/command_line.cc and worker/main.cc. One thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/open_mpi.h"

namespace espalier {

struct LaunchEnvironment {
  bool under_mpirun = false;
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // among the processes of this mpirun on this machine
  int local_ranks = 1;
  std::string run_id;  // shared by all ranks of one mpirun, and by no other
};

// `variable` gives the value of an environment variable (std::getenv but for tests).
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;
LaunchEnvironment ReadLaunchEnvironment(const ReadVariable& variable);
std::optional<std::string> EnvironmentVariable(const char* name);

// Of what bounds the spinning of OpenMP's threads (common/config/open_mpi.h), that which is not
// set; nothing where the user has said how threads wait.
std::vector<SpinBound> MissingSpinBounds(const ReadVariable& variable);

// Returns where nothing is to be set, or all is; else the program begins anew, in this process.
// A variable that the user has set is left alone.
void SetLoadEnvironment(char** argv);

// FAILED_PRECONDITION where two of LLVM's or Intel's OpenMP runtimes are among the libraries that a
// process has loaded: the second one to be used would end it, without naming the program that
// brought it.
absl::Status CheckOpenMpRuntimes(const std::vector<std::string>& libraries);

}  // namespace espalier
