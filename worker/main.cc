// espalier-worker: one rank of a training run, and the verbs that need LibTorch.
#include "worker/command_line.h"
#include "worker/launch_environment.h"

int main(int argc, char** argv) {
  espalier::SetLoadEnvironment(argv);
  return static_cast<int>(espalier::RunCommandLine(argc, argv));
}
