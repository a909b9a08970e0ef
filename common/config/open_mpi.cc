#include "common/config/open_mpi.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {

std::vector<OpenMpiParameter> TransportParameters(const OpenMpiSettings& settings) {
  std::vector<OpenMpiParameter> parameters = {
      {"pml", "ob1"},
      {"btl", "tcp,self"},
      {"btl_tcp_links", absl::StrCat(settings.links)},
  };
  if (settings.links > 1) {
    // Without these, Open MPI sends large messages over the first link only: one message takes one
    // link, and the messages take the links in turn.
    parameters.push_back({"pml_ob1_use_all_rdma", "1"});
    parameters.push_back({"pml_ob1_max_rdma_per_request", "1"});
  }
  if (!settings.networks.empty()) {
    parameters.push_back({"btl_tcp_if_include", settings.networks});
  }
  if (settings.socket_buffer_bytes > 0) {
    parameters.push_back({"btl_tcp_sndbuf", absl::StrCat(settings.socket_buffer_bytes)});
    parameters.push_back({"btl_tcp_rcvbuf", absl::StrCat(settings.socket_buffer_bytes)});
  }
  return parameters;
}

absl::StatusOr<OpenMpiVersion> ParseOpenMpiVersion(absl::string_view text) {
  if (absl::StrContains(text, "(Open MPI) 4.")) return OpenMpiVersion::kFour;
  if (absl::StrContains(text, "(Open MPI) 5.")) return OpenMpiVersion::kFive;
  if (absl::StrContains(text, "(Open MPI) 6.")) return OpenMpiVersion::kSix;
  return absl::UnimplementedError(absl::StrCat(
      "mpirun is not Open MPI 4, 5 or 6; it says: '", text.substr(0, 80),
      "'; install Open MPI, or name its mpirun in the cluster file (launcher.mpirun)"));
}

std::vector<std::string> MpirunArguments(const MpirunOptions& options, OpenMpiVersion version) {
  const bool five = version != OpenMpiVersion::kFour;
  std::vector<std::string> arguments = {"--bind-to", "none"};
  const auto runtime = [&](absl::string_view four_name, absl::string_view five_name,
                           const std::string& value) {
    if (value.empty()) return;
    arguments.push_back(five ? "--prtemca" : "--mca");
    arguments.push_back(std::string(five ? five_name : four_name));
    arguments.push_back(value);
  };
  // A rank that is lost takes the others with it: workers end on SIGTERM, and the daemons of Open
  // MPI 4 wait a second for them all the same.
  if (!five) arguments.insert(arguments.end(), {"--mca", "odls_base_sigkill_timeout", "0"});
  runtime("plm_rsh_agent", "plm_ssh_agent", options.remote_shell);
  if (options.hosts != MpirunOptions::Hosts::kMachines) {
    runtime("plm_rsh_no_tree_spawn", "plm_ssh_no_tree_spawn", "1");
  }
  // Open MPI 5 asks no name server by itself; own addresses are known by asking.
  if (options.hosts == MpirunOptions::Hosts::kAgents && !five) {
    arguments.insert(arguments.end(), {"--mca", "if_base_do_not_resolve", "1"});
  }
  // Open MPI 5 knows no loopback by that name, and its daemons need none on one machine.
  if (!five || !absl::StartsWith(options.transport.networks, "127.")) {
    runtime("oob_tcp_if_include", "prte_if_include", options.transport.networks);
  }
  for (const OpenMpiParameter& parameter : TransportParameters(options.transport)) {
    arguments.insert(arguments.end(), {"--mca", parameter.name, parameter.value});
  }
  for (const SpinBound& bound : kSpinBounds) {
    arguments.insert(arguments.end(), {"-x", absl::StrCat(bound.variable, "=", bound.value)});
  }
  return arguments;
}

std::string OpenMpiVariable(absl::string_view parameter) {
  return absl::StrCat("OMPI_MCA_", parameter);
}

std::vector<std::string> RootEnvironment() {
  return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
}

}  // namespace espalier
