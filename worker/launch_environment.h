// What mpirun tells the processes it starts, read from the environment before MPI starts. Used by
// run.cc. Pure but for the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

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

}  // namespace espalier
