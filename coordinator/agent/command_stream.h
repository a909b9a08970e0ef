// CommandStream: one Attach stream of the agent, from its opening on a connected channel to its
// end. A thread of its own introduces the agent and reads the commands. Used by
// coordinator/agent/agent.cc. Thread rule: owner's thread, except for Cancel.
#pragma once

#include <grpcpp/client_context.h>

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "espalier/v1/agent.grpc.pb.h"

namespace espalier {

class CommandStream {
 public:
  CommandStream(const ChannelTarget& target, v1::AgentService::Stub& stub,
                const v1::AgentHello& hello);
  ~CommandStream();

  // Not before the first command has come. False: the stream is over.
  bool Write(const v1::AgentMessage& message);
  // What has arrived; waits up to `timeout` for the first, shorter when the stream ends.
  std::vector<v1::AgentCommand> Take(absl::Duration timeout);
  bool over() const;
  // Wakes Take and ends the stream.
  void Cancel();
  // Why the stream has ended; call it once, when it is over.
  absl::Status Finish();

 private:
  void Read(const v1::AgentHello& hello);

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::AgentCommand>> stream_;

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<v1::AgentCommand> commands_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
};

}  // namespace espalier
