// Agent: the always-on process of a node. It attaches to espalierd and says what the node has,
// starts and ends the generations' daemons here, and opens another stream with back-off whenever
// the last one has ended. It listens nowhere. Used by program.cc, coordinator/agent_main.cc and
// tests. Thread rule: Start, Run and destruction belong to one thread; Stop may be called from any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/platform/platform.h"
#include "common/rpc/channel.h"
#include "coordinator/agent/node_facts.h"

namespace espalier {

struct AgentOptions {
  ChannelTarget target;
  std::string node;
  NodeFactsOptions facts;  // its state_dir is the agent's
  // What the machine says of its sleep; null: nothing.
  std::unique_ptr<SleepNotice> sleep;
  // Keeps the machine awake while what it returns lives; may take its time. Null: nobody does.
  std::function<absl::StatusOr<std::unique_ptr<KeepAwake>>()> keep_awake;
};

class Agent {
 public:
  virtual ~Agent() = default;
  // Takes the state folder and the generations of an earlier agent. FAILED_PRECONDITION: another
  // agent has it; and the errors of MakeChannel.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options, Clock& clock);
  // Until Stop, which leaves generations running for the next agent; or until espalierd refuses
  // this node for good: that error.
  virtual absl::Status Run() = 0;
  virtual void Stop() = 0;
};

// How long to wait for the next stream after one that ended so, and the pause before that one: a
// few seconds at most while espalierd may come back, a minute when it refuses this node and a
// person has to mend it.
absl::Duration NextPause(absl::Duration last, const absl::Status& ended, bool was_welcomed);

// The program. Exit status of `run`: 0 stopped by a signal, 1 cannot run, 2 wrong command line; of
// `exec`: see exec.h.
int RunAgentProgram(int argc, char** argv);

}  // namespace espalier
