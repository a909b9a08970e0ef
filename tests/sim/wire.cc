#include "tests/sim/wire.h"

#include <algorithm>
#include <utility>

namespace espalier::sim {

absl::Duration Wire::Delay() {
  if (scene_.Fault(60)) return scene_.chance.Milliseconds(50, 800);
  return scene_.chance.Milliseconds(1, 15);
}

void Wire::SayGone(StreamId id) { coordinator_(id, streams_.at(id).speaker, nullptr); }

bool Wire::Deaf(StreamId id) const {
  const auto found = streams_.find(id);
  return found == streams_.end() || found->second.cut || found->second.up_lost;
}

StreamId Wire::Open(WorkerEnd* end, const NodeName& node, Speaker speaker,
                    const std::string& serial) {
  const StreamId id = std::exchange(next_, next_.next());
  streams_[id] = Stream{.end = end,
                        .speaker = speaker,
                        .node = node,
                        .serial = serial,
                        .last_up = scene_.timeline.now(),
                        .last_down = scene_.timeline.now()};
  return id;
}

void Wire::Deliver(StreamId id, std::optional<std::string> bytes, absl::Time at) {
  scene_.timeline.At(at, [this, id, bytes = std::move(bytes)] {
    if (PassesUp(id)) coordinator_(id, streams_.at(id).speaker, bytes ? &*bytes : nullptr);
  });
}

void Wire::Up(StreamId id, const google::protobuf::MessageLite& message, Care care) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.cut) return;
  Stream& stream = found->second;
  const bool careless = care == Care::kCareless;
  if (careless && scene_.Fault(25)) return;
  const std::string bytes = message.SerializeAsString();
  const absl::Time soonest = scene_.timeline.now() + Delay();
  // Even what overtakes others never arrives before the hello.
  const bool overtakes = careless && scene_.Fault(10);
  const absl::Time at = std::max(soonest, stream.last_up) + absl::Microseconds(1);
  Deliver(id, bytes, at);
  if (careless && scene_.Fault(20)) {
    const absl::Time again = at + scene_.chance.Milliseconds(0, 300);
    Deliver(id, bytes, again);
  }
  if (!overtakes) stream.last_up = at;
}

void Wire::TellWorker(StreamId id, const std::function<bool(WorkerEnd&)>& tell) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.worker_gone) return;
  if (tell(*found->second.end)) return;
  scene_.timeline.After(absl::Milliseconds(100), [this, id, tell] { TellWorker(id, tell); });
}

void Wire::ToWorker(StreamId id, std::function<bool(WorkerEnd&)> tell) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.cut) return;
  Stream& stream = found->second;
  stream.last_down =
      std::max(scene_.timeline.now() + Delay(), stream.last_down + absl::Microseconds(1));
  scene_.timeline.At(stream.last_down, [this, id, tell = std::move(tell)] {
    if (PassesDown(id)) TellWorker(id, tell);
  });
}

void Wire::Down(StreamId id, const std::string& bytes) {
  ToWorker(id, [id, bytes](WorkerEnd& end) { return end.OnMessage(id, bytes); });
}

void Wire::Partition(const NodeName& node, absl::Duration time, Way way) {
  Barrier& barrier = barriers_[node];
  const absl::Time until = scene_.timeline.now() + time;
  if (way != Way::kDown) barrier.up_until = std::max(barrier.up_until, until);
  if (way != Way::kUp) barrier.down_until = std::max(barrier.down_until, until);
}

absl::Time Wire::PartitionedUntil(const NodeName& node) const {
  const auto barrier = barriers_.find(node);
  if (barrier == barriers_.end()) return absl::InfinitePast();
  return std::max(barrier->second.up_until, barrier->second.down_until);
}

bool Wire::Partitioned(const NodeName& node) const {
  return scene_.timeline.now() < PartitionedUntil(node);
}

bool Wire::Mute(const NodeName& node) const {
  const auto barrier = barriers_.find(node);
  return barrier != barriers_.end() && scene_.timeline.now() < barrier->second.up_until;
}

bool Wire::PassesUp(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.cut) return false;
  Stream& stream = found->second;
  if (Mute(stream.node) && !std::exchange(stream.up_lost, true)) BreakSoon(id);
  return !stream.up_lost;
}

bool Wire::PassesDown(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.cut) return false;
  Stream& stream = found->second;
  const auto barrier = barriers_.find(stream.node);
  const bool blocked =
      barrier != barriers_.end() && scene_.timeline.now() < barrier->second.down_until;
  if (blocked && !std::exchange(stream.down_lost, true)) BreakSoon(id);
  return !stream.down_lost;
}

// Each end notices by itself that nothing passes.
void Wire::BreakSoon(StreamId id) {
  const auto closed = [id](WorkerEnd& end) {
    return end.OnClosed(id, absl::UnavailableError("nothing passes"));
  };
  scene_.timeline.After(scene_.chance.Milliseconds(100, 20000), [this, id] { SayGone(id); });
  scene_.timeline.After(scene_.chance.Milliseconds(100, 20000),
                        [this, id, closed] { TellWorker(id, closed); });
}

void Wire::CloseByCoordinator(StreamId id, const absl::Status& status) {
  ToWorker(id, [id, status](WorkerEnd& end) { return end.OnClosed(id, status); });
}

void Wire::CloseByWorker(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  found->second.worker_gone = true;
  const absl::Time at = std::max(scene_.timeline.now() + Delay(), found->second.last_up);
  Deliver(id, std::nullopt, at + absl::Microseconds(1));
}

void Wire::Cut(StreamId id) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || found->second.cut) return;
  found->second.cut = true;
  const auto closed = [id](WorkerEnd& end) {
    return end.OnClosed(id, absl::UnavailableError("cut"));
  };
  scene_.timeline.After(scene_.chance.Milliseconds(1, 1500), [this, id] { SayGone(id); });
  scene_.timeline.After(scene_.chance.Milliseconds(1, 1500),
                        [this, id, closed] { TellWorker(id, closed); });
}

void Wire::CutAll() {
  for (const auto& [id, stream] : streams_) Cut(id);
}

void Wire::CoordinatorDied() {
  for (auto& [id, stream] : streams_) {
    if (stream.cut) continue;
    stream.cut = true;
    const auto closed = [id = id](WorkerEnd& end) {
      return end.OnClosed(id, absl::UnavailableError("espalierd is gone"));
    };
    scene_.timeline.After(scene_.chance.Milliseconds(1, 20),
                          [this, id = id, closed] { TellWorker(id, closed); });
  }
}

}  // namespace espalier::sim
