#include "tests/sim/sim_streams.h"

namespace espalier::sim {

void SimStreams::Send(StreamId stream, v1::AttachResponse message) {
  if (!hooks_.sending(stream, message)) return;
  outgoing_[stream].outbox.Put(std::move(message));
  Write(stream);
}

void SimStreams::Send(StreamId stream, v1::AgentCommand command) {
  if (hooks_.commanding(stream, command)) wire_.Down(stream, command.SerializeAsString());
}

void SimStreams::Close(StreamId stream, const absl::Status& status) {
  if (!hooks_.closing(stream, status)) return;
  std::optional<absl::Status>& close = outgoing_[stream].close;
  if (!close) close = status;
  Write(stream);
}

void SimStreams::Die() {
  ++life_;
  outgoing_.clear();
}

void SimStreams::Write(StreamId stream) {
  const auto found = outgoing_.find(stream);
  if (found == outgoing_.end() || found->second.writing) return;
  Outgoing& outgoing = found->second;
  if (const std::optional<v1::AttachResponse> message = outgoing.outbox.Take()) {
    wire_.Down(stream, message->SerializeAsString());
    outgoing.writing = true;
    const absl::Duration time =
        scene_.Fault(100) ? scene_.chance.Milliseconds(10, 3000) : scene_.chance.Milliseconds(0, 2);
    scene_.timeline.After(time, [this, stream, life = life_] {
      const auto written = outgoing_.find(stream);
      if (life != life_ || written == outgoing_.end()) return;
      written->second.writing = false;
      Write(stream);
    });
  } else if (outgoing.close) {
    wire_.CloseByCoordinator(stream, *outgoing.close);
    outgoing_.erase(found);
  }
}

}  // namespace espalier::sim
