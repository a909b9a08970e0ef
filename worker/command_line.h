// The command line of espalier-worker: training by default, and the verbs that need LibTorch.
// Used by main.cc. One thread.
#pragma once

#include "worker/ending.h"

namespace espalier {

// Parses, runs what is asked for, and returns its exit code. Help goes to standard output, mistakes
// to standard error.
WorkerExit RunCommandLine(int argc, char** argv);

}  // namespace espalier
