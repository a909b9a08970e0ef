// What mpirun_launcher.cc tells mpirun's remote-shell agent (coordinator/agent/exec.h): through the
// environment, because whoever may see processes sees arguments. Used by these two. Any thread.
#pragma once

namespace espalier {

// The state folder of espalierd, by whose Unix socket it is reached.
inline constexpr char kExecCoordinator[] = "ESPALIER_EXEC_COORDINATOR";
inline constexpr char kExecJob[] = "ESPALIER_EXEC_JOB";
inline constexpr char kExecGeneration[] = "ESPALIER_EXEC_GENERATION";
inline constexpr char kExecSecret[] = "ESPALIER_EXEC_SECRET";
// "HOST=NODE,HOST=NODE": the hosts that are nodes with agents, as mpirun is told of them.
inline constexpr char kExecNodes[] = "ESPALIER_EXEC_NODES";
// Program and arguments that run a command on any other host.
inline constexpr char kExecRemoteShell[] = "ESPALIER_EXEC_REMOTE_SHELL";

}  // namespace espalier
