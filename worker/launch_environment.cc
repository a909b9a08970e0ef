#include "worker/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/platform/platform.h"

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

std::vector<SpinBound> MissingSpinBounds(const ReadVariable& variable) {
  std::vector<SpinBound> missing;
  if (variable("OMP_WAIT_POLICY")) return missing;
  for (const SpinBound& bound : kSpinBounds) {
    if (!variable(bound.variable)) missing.push_back(bound);
  }
  return missing;
}

// OpenMP lets a thread that waits for the others spin before it sleeps: libgomp for milliseconds,
// libomp for 200. Where cores are shared (two ranks on a host, a build beside the training) the
// spinning takes the very core that the awaited thread needs: measured with libgomp on 2 cores
// under load, 60 % of the processor time. Some tens of microseconds of spinning cost 0 to 10 %
// where the cores are free (runs differ), and gain 5 to 30 % where they are not. A millisecond is
// the least that all versions of libomp understand, but for none.
void SetLoadEnvironment(char** argv) {
  const std::vector<SpinBound> missing = MissingSpinBounds(EnvironmentVariable);
  if (missing.empty()) return;
  for (const SpinBound& bound : missing) setenv(bound.variable, bound.value, /*overwrite=*/1);
  // By its own path, so that the process keeps its name; on failure training goes on, only slower.
  const absl::StatusOr<std::string> program = ProgramPath();
  if (program.ok()) execv(program->c_str(), argv);
}

absl::Status CheckOpenMpRuntimes(const std::vector<std::string>& libraries) {
  std::vector<std::string> runtimes;
  for (const std::string& path : libraries) {
    const std::string name = path.substr(path.rfind('/') + 1);
    if (!absl::StartsWith(name, "libomp.") && !absl::StartsWith(name, "libiomp5.")) continue;
    if (std::find(runtimes.begin(), runtimes.end(), path) == runtimes.end()) {
      runtimes.push_back(path);
    }
  }
  if (runtimes.size() < 2) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "two OpenMP runtimes are loaded, of which the second would end the process (OMP: Error "
      "#15): ",
      absl::StrJoin(runtimes, " and "),
      "; build against the one that LibTorch uses: with Homebrew's pytorch that is `brew install "
      "libomp`, then deploy/dev clean, deploy/dev build"));
}

}  // namespace espalier
