// mpirun's remote-shell agent: asks espalierd to have a node's agent start Open MPI's daemon, and
// stays until that has ended. What it is to do beyond its arguments stands in variables that
// espalierd gives to mpirun. Used by coordinator/agent/program.cc. Thread rule:
// any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace espalier {

using ReadVariable = std::function<std::optional<std::string>(const char* name)>;

// `words`: HOST COMMAND.... Exit status as a remote shell's: the daemon's own, or 255 with a
// sentence on standard error. When espalierd goes while the daemon runs, 0, as if the daemon had
// detached itself: mpirun has its own connection to it.
//
// A host that is no node with an agent is reached by the remote shell of the cluster file.
int RunExec(const std::vector<std::string>& words, const ReadVariable& variable, Clock& clock);

}  // namespace espalier
