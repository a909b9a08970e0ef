// NodeAgents: the agents of nodes, as the launcher needs them: to let mpirun start its daemons
// through them, and to have what is left of a generation ended, confirmed. Implemented by
// coordinator/service/agent_service.h, and by the tests in memory. Used by mpirun_launcher.h,
// coordinator/service and coordinator/agent. Also what the launcher tells mpirun's remote-shell
// agent. Thread rule: called by the loop's thread; never blocks.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace espalier {

// Through the environment, because whoever may see processes sees arguments.
//
// The state folder of espalierd, by whose Unix socket it is reached.
inline constexpr char kExecCoordinator[] = "ESPALIER_EXEC_COORDINATOR";
inline constexpr char kExecJob[] = "ESPALIER_EXEC_JOB";
inline constexpr char kExecGeneration[] = "ESPALIER_EXEC_GENERATION";
inline constexpr char kExecSecret[] = "ESPALIER_EXEC_SECRET";
// "HOST=NODE,HOST=NODE": the hosts that are nodes with agents, as mpirun is told of them.
inline constexpr char kExecNodes[] = "ESPALIER_EXEC_NODES";
// Program and arguments that run a command on any other host.
inline constexpr char kExecRemoteShell[] = "ESPALIER_EXEC_REMOTE_SHELL";

class NodeAgents {
 public:
  virtual ~NodeAgents() = default;
  virtual bool Attached(const NodeName& node) const = 0;
  // From now on the daemons of this generation may be started by who knows the secret, which is
  // returned: the same for every espalierd with this state folder.
  virtual std::string Admit(const GenerationKey& key) = 0;

  enum class Ending {
    // The agent has confirmed that nothing of the generation runs on the node.
    kGone,
    kUnderWay,
    // The agent is not attached; it ends the generation when it comes back, or that lasts.
    kAway,
  };
  // Nothing of the generation is started any more, and what runs of it on the node is ended. Called
  // again until it is gone.
  virtual Ending End(const GenerationKey& key, const NodeName& node) = 0;
  // The generation is over.
  virtual void Forget(const GenerationKey& key) = 0;
};

// How long the processes of a generation are left alone while their node's agent is without
// espalierd: as long as its workers hold when nobody renews their leases. Nobody waits for it.
constexpr absl::Duration kOrphanLimit = absl::Hours(12);
// How long an agent that is there may take to confirm an end. It ends by force after two seconds;
// what lasts longer hangs: a process in the kernel, or the agent.
constexpr absl::Duration kConfirmLimit = absl::Seconds(60);

}  // namespace espalier
