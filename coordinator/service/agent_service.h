// AgentService over gRPC: the streams of the nodes' agents, and of mpirun's remote-shell agents,
// which it joins: what mpirun asks for a node goes to that node's agent, and what becomes of it
// comes back. Who may speak for a node the core decides; to the launcher it is NodeAgents. Used by
// daemon.cc.
// Thread-safe: reactions run on gRPC's threads, NodeAgents is called by the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/rpc/server_credentials.h"
#include "coordinator/launcher/node_agents.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/loop/outlets.h"
#include "coordinator/service/stream_places.h"
#include "espalier/v1/agent.grpc.pb.h"

namespace espalier {

class AgentStream;
class ExecStream;

struct AgentServiceOptions {
  // From which the secrets of generations are made; the same for every espalierd with this state
  // folder.
  std::string exec_key;
  // AgentWelcome.job_folder.
  std::string job_folder;
  // AgentWelcome.warm_folder.
  std::string warm_folder;
  // More are refused with RESOURCE_EXHAUSTED.
  StreamPlaces::Limits places;
  // Outlives the service.
  Clock* clock = &RealClock();
};

class AgentService : public v1::AgentService::CallbackService,
                     public NodeAgents,
                     public AgentStreams {
 public:
  // `inbox` outlives the service.
  AgentService(Inbox& inbox, AgentServiceOptions options);
  ~AgentService() override;

  grpc::ServerBidiReactor<v1::AgentMessage, v1::AgentCommand>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::ExecResponse>* Exec(grpc::CallbackServerContext* context,
                                                   const v1::ExecRequest* request) override;

  bool Attached(const NodeName& node) const override;
  std::string Admit(const GenerationKey& key) override;
  Ending End(const GenerationKey& key, const NodeName& node) override;
  void Forget(const GenerationKey& key) override;

  void Send(StreamId id, v1::AgentCommand command) override;
  // Ends an agent's stream.
  void Close(StreamId id, const absl::Status& status);
  // Ends agents' streams that have not said hello in time. To be called a few times a second.
  void CloseSilent();
  // Ends every stream and refuses new ones, for a clean stop.
  void CloseAll();

 private:
  struct Agent {
    std::shared_ptr<AgentStream> stream;
    // Nobody without TLS.
    Caller caller;
    // Known from its hello, and never changed afterwards.
    std::optional<NodeName> node;
    // When it last said anything.
    absl::Duration heard_at;
    // The loop knows that nothing more comes.
    bool gone = false;
  };
  struct Generation {
    bool ending = false;
    // Agents' streams that were told to end it, and nodes that have confirmed.
    std::set<StreamId> told;
    std::set<NodeName> gone;
  };
  struct Wait {
    std::shared_ptr<ExecStream> stream;
    // The agent's.
    StreamId agent;
  };

  // Who speaks for a node.
  struct Speaker {
    StreamId id;
    std::shared_ptr<AgentStream> stream;
    absl::Duration heard_at;
  };

  void Heard(StreamId id, const v1::AgentMessage& message);
  void Introduce(StreamId id, const v1::AgentHello& hello);
  // The core has taken the agent in, or has closed its stream.
  void Welcome(StreamId id, const v1::AgentHello& hello);
  void ReadOn(StreamId id);
  void Answer(StreamId id, const v1::AgentMessage& message);
  void Confirm(StreamId id, const v1::GenerationGone& gone);
  void Detached(StreamId id);
  absl::Status Pass(const std::shared_ptr<ExecStream>& stream, int64_t id,
                    const v1::ExecRequest& request);
  std::shared_ptr<AgentStream> StreamOf(StreamId id) const;
  std::optional<Speaker> SpeakerOf(const NodeName& node) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Secret(const GenerationKey& key) const;

  Inbox& inbox_;
  const AgentServiceOptions options_;
  // Commands to agents are queued under it, in the order in which they were decided: nothing is
  // started for a generation after its end. A stream's lock may be taken under it.
  mutable absl::Mutex mutex_;
  StreamPlaces places_ ABSL_GUARDED_BY(mutex_);
  std::map<StreamId, Agent> agents_ ABSL_GUARDED_BY(mutex_);
  // The stream that speaks for a node, while it is there.
  std::map<NodeName, StreamId> nodes_ ABSL_GUARDED_BY(mutex_);
  std::map<GenerationKey, Generation> generations_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Wait> waits_ ABSL_GUARDED_BY(mutex_);
  StreamId next_stream_ ABSL_GUARDED_BY(mutex_);
  int64_t next_exec_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
