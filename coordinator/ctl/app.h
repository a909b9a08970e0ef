// The command line of `espalier`: global options, verbs, help, and what happens with the outcome.
// Used by espalier_main.cc and tests. One thread.
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "coordinator/ctl/terminal.h"

namespace espalier::ctl {

// Runs one command; `arguments` without the program's name. Returns the exit code (options.h).
// `data` and `generate` replace the process by espalier-worker and return only when that fails.
int RunEspalier(const std::vector<std::string>& arguments, Terminal& terminal, Clock& clock);

}  // namespace espalier::ctl
