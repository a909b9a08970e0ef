#include "worker/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/open_mpi.h"

namespace espalier {

namespace {

int NumberOr(const ReadVariable& variable, const char* name, int otherwise) {
  int value = 0;
  const std::optional<std::string> text = variable(name);
  return text && absl::SimpleAtoi(*text, &value) ? value : otherwise;
}

// The namespace is made of the host's name and mpirun's process number, which a container that is
// started again gives to the next mpirun, too. Open MPI 4 tells all ranks a random number besides;
// in what 5 tells nothing is random, so a person can add a word.
std::string RunId(const ReadVariable& variable) {
  std::string id;
  for (const char* name :
       {"PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports", "ESPALIER_RUN_ID"}) {
    const std::string part = variable(name).value_or("");
    if (!part.empty()) absl::StrAppend(&id, id.empty() ? "" : "/", part);
  }
  return id;
}

}  // namespace

std::optional<std::string> EnvironmentVariable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// The OMPI_COMM_WORLD_* variables are the same in Open MPI 4 and 5.
LaunchEnvironment ReadLaunchEnvironment(const ReadVariable& variable) {
  LaunchEnvironment environment;
  environment.under_mpirun = variable("OMPI_COMM_WORLD_SIZE").has_value();
  if (!environment.under_mpirun) return environment;
  environment.ranks = std::max(1, NumberOr(variable, "OMPI_COMM_WORLD_SIZE", 1));
  environment.rank = NumberOr(variable, "OMPI_COMM_WORLD_RANK", 0);
  environment.local_ranks = std::max(1, NumberOr(variable, "OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  environment.local_rank = NumberOr(variable, "OMPI_COMM_WORLD_LOCAL_RANK", 0);
  environment.run_id = RunId(variable);
  return environment;
}

// libgomp lets a thread that waits for the others spin for milliseconds before it sleeps. Where
// cores are shared (two ranks on a host, a build beside the training) the spinning takes the very
// core that the awaited thread needs: measured on 2 cores under load, 60 % of the processor time.
// Some tens of microseconds of spinning cost 0 to 10 % where the cores are free (runs differ), and
// gain 5 to 30 % where they are not.
void SetLoadEnvironment(char** argv) {
#if defined(__linux__)
  if (std::getenv(kSpinVariable) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv(kSpinVariable, kSpinCount, /*overwrite=*/1);
  // By its own path, so that the process keeps its name; on failure training goes on, only slower.
  char path[PATH_MAX + 1] = {};
  if (readlink("/proc/self/exe", path, PATH_MAX) > 0) execv(path, argv);
#else
  (void)argv;
#endif
}

}  // namespace espalier
