#include "worker/launch_environment.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace espalier {
namespace {

int NumberOr(const ReadVariable& variable, const char* name, int otherwise) {
  int value = 0;
  const std::optional<std::string> text = variable(name);
  return text && absl::SimpleAtoi(*text, &value) ? value : otherwise;
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
  environment.run_id = variable("PMIX_NAMESPACE").value_or("");
  return environment;
}

}  // namespace espalier
