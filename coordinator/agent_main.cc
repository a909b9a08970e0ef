// espalier-agent: the always-on process of a node, and mpirun's remote-shell agent.
#include "coordinator/agent/agent.h"

int main(int argc, char** argv) { return espalier::RunAgentProgram(argc, argv); }
