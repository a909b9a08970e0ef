// What mpirun asks of its remote-shell agent, taken apart: Open MPI's daemon and its parameters,
// all of them known ones. Nothing of the text ever reaches a shell or the daemon that is not
// understood to the last character. Used by coordinator/agent/generations.cc. Pure functions: any
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/open_mpi.h"

namespace espalier {

struct DaemonCommand {
  // "orted" (Open MPI 4) or "prted" (5): the agent runs the one of its own installation.
  std::string program;
  std::vector<std::string> arguments;
  // "NAME VALUE" of what a newer Open MPI gives and was left out: the daemon's own defaults hold.
  std::vector<std::string> left_out;
};

// `words`: what mpirun gives after the host; the first may hold assignments before the daemon, as a
// shell would read them. INVALID_ARGUMENT names the first thing that is not known.
//
// Left out of the result: assignments (the agent makes the environment), --daemonize (the agent
// keeps the daemon as its child, to which prted must be told to agree), the parameters by which
// a daemon would start others, and of prted (not of orted, of which no newer ones come) unknown
// ones whose value is a number or a yes or no, and whose name is not of a program, library or file.
absl::StatusOr<DaemonCommand> ParseDaemonCommand(const std::vector<std::string>& words);

}  // namespace espalier
