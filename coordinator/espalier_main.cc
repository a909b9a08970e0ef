// espalier: the operator's command line. See coordinator/ctl/README.md.
#include <cstdlib>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "coordinator/ctl/app.h"
#include "coordinator/ctl/terminal.h"

int main(int argc, char** argv) {
  // gRPC's own lines about failed connections say less than the message that follows.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return espalier::ctl::RunEspalier(arguments, espalier::ctl::StandardTerminal(),
                                    espalier::RealClock());
}
