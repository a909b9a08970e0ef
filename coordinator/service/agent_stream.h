// The server's ends of the two streams of agent.proto: AgentStream (a node's agent) and ExecStream
// (mpirun's remote-shell agent, which waits for a daemon). Used by agent_service.cc only.
// Thread-safe, as QueuedStream says.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "coordinator/service/queued_stream.h"
#include "espalier/v1/agent.grpc.pb.h"

namespace espalier {

class AgentStream : public QueuedStream<grpc::ServerBidiReactor<v1::AgentMessage, v1::AgentCommand>,
                                        v1::AgentCommand> {
 public:
  // `heard` is called for each message; the next one is read after ReadOn. `closed` is called when
  // nothing more comes, maybe more than once.
  AgentStream(std::function<void(const v1::AgentMessage&)> heard, std::function<void()> closed,
              std::function<void()> forget)
      : QueuedStream(std::move(forget)), heard_(std::move(heard)), closed_(std::move(closed)) {}

  using QueuedStream::ReadOn;

  void OnReadDone(bool ok) override {
    if (ok) return heard_(incoming_);
    closed_();
    Close(absl::OkStatus());
  }

 private:
  void Read() override { StartRead(&incoming_); }

  const std::function<void(const v1::AgentMessage&)> heard_;
  const std::function<void()> closed_;
  // gRPC's from the start of a read to its reaction.
  v1::AgentMessage incoming_;
};

class ExecStream
    : public QueuedStream<grpc::ServerWriteReactor<v1::ExecResponse>, v1::ExecResponse> {
 public:
  using QueuedStream::QueuedStream;
};

}  // namespace espalier
