#include "worker/collective/transport.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// Open MPI replaces the networks it was given by the names of the interfaces that it found on them
// (and refuses to start when there is none), so what it was given is what counts.
absl::StatusOr<std::string> ValueInForce(const MpiWorld& world, const std::string& parameter) {
  if (parameter != "btl_tcp_if_include") return world.Parameter(parameter);
  const char* given = std::getenv(OpenMpiVariable(parameter).c_str());
  return std::string(given == nullptr ? "" : given);
}

}  // namespace

void SetMissingOpenMpiParameters(const OpenMpiSettings& settings, bool one_host) {
  std::vector<OpenMpiParameter> parameters = TransportParameters(settings);
  const bool chosen = std::getenv(OpenMpiVariable("btl_tcp_if_exclude").c_str()) != nullptr;
  if (one_host && settings.networks.empty() && !chosen) {
    parameters.push_back({"btl_tcp_if_include", "127.0.0.0/8"});
  }
  for (const OpenMpiParameter& parameter : parameters) {
    const std::string variable = OpenMpiVariable(parameter.name);
    if (std::getenv(variable.c_str()) != nullptr) continue;
    setenv(variable.c_str(), parameter.value.c_str(), /*overwrite=*/0);
  }
}

absl::Status VerifyTransport(const MpiWorld& world, const TransportWish& wish) {
  if (wish.ranks != 0 && world.size() != wish.ranks) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the MPI world has ", world.size(), world.size() == 1 ? " rank" : " ranks", " where ",
        wish.ranks, " were launched; check that mpirun and the worker use the same Open MPI (",
        MpiWorld::LibraryVersion(), ")"));
  }
  for (const OpenMpiParameter& wanted : TransportParameters(wish.settings)) {
    const absl::StatusOr<std::string> read = ValueInForce(world, wanted.name);
    // How the links are used is tuning, which another version may spell otherwise.
    if (absl::IsNotFound(read.status()) && absl::StartsWith(wanted.name, "pml_ob1_")) continue;
    ASSIGN_OR_RETURN(const std::string value, read);
    if (value == wanted.value) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("Open MPI has ", wanted.name, " = '", value, "' where the job asks for '",
                     wanted.value, "'; leave the parameter out of the mpirun command, of the ",
                     "environment (", OpenMpiVariable(wanted.name),
                     ") and of openmpi-mca-params.conf, or change the job's parallel section"));
  }
  return absl::OkStatus();
}

}  // namespace espalier
