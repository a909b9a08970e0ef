// SimStreams: the coordinator's end of the simulated Attach streams: one message is written at a
// time, which may take a while, and meanwhile newer ones replace those that wait, by espalierd's
// own AttachOutbox. Used by sim_coordinator.h. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "coordinator/loop/attach_outbox.h"
#include "coordinator/loop/outlets.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"

namespace espalier::sim {

class SimStreams : public WorkerStreams, public AgentStreams {
 public:
  // What the loop wants sent or closed, before it is. False: espalierd has died by then.
  struct Hooks {
    std::function<bool(StreamId, const v1::AttachResponse&)> sending;
    std::function<bool(StreamId, const v1::AgentCommand&)> commanding;
    std::function<bool(StreamId, const absl::Status&)> closing;
  };
  SimStreams(Scene& scene, Wire& wire) : scene_(scene), wire_(wire) {}

  void Use(Hooks hooks) { hooks_ = std::move(hooks); }
  void Send(StreamId stream, v1::AttachResponse message) override;
  void Send(StreamId stream, v1::AgentCommand command) override;
  void Close(StreamId stream, const absl::Status& status) override;
  // Nobody is there any more: the worker; espalierd, and with it what waits.
  void Gone(StreamId stream) { outgoing_.erase(stream); }
  void Die();

 private:
  struct Outgoing {
    AttachOutbox outbox;
    std::optional<absl::Status> close;
    bool writing = false;
  };
  // Starts the write that is due, or the end.
  void Write(StreamId stream);

  Scene& scene_;
  Wire& wire_;
  Hooks hooks_;
  std::map<StreamId, Outgoing> outgoing_;
  int64_t life_ = 0;
};

}  // namespace espalier::sim
