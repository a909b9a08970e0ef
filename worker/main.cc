// espalier-worker: one rank of a training run, and the verbs that need LibTorch.
#include "worker/command_line.h"
#include "worker/ending.h"
#include "worker/launch_environment.h"

int main(int argc, char** argv) {
  espalier::SetLoadEnvironment(argv);
  espalier::LeaveAtOnce(espalier::RunCommandLine(argc, argv));
}
