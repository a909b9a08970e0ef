#include "tests/sim/wire.h"

#include <algorithm>
#include <utility>

namespace espalier::sim {

absl::Duration Wire::Delay() {
  if (scene_.Fault(60)) return scene_.chance.Milliseconds(50, 800);
  return scene_.chance.Milliseconds(1, 15);
}

LinkId Wire::Open(WorkerEnd* end) {
  const LinkId link = std::exchange(next_, next_.next());
  streams_[link] =
      Stream{.end = end, .last_up = scene_.timeline.now(), .last_down = scene_.timeline.now()};
  return link;
}

void Wire::Deliver(LinkId link, const Event& event, absl::Time at) {
  scene_.timeline.At(at, [this, link, event] {
    const auto found = streams_.find(link);
    if (found != streams_.end() && !found->second.cut) coordinator_(event);
  });
}

void Wire::Up(LinkId link, const Event& event, Care care) {
  const auto found = streams_.find(link);
  if (found == streams_.end() || found->second.cut) return;
  Stream& stream = found->second;
  const bool careless = care == Care::kCareless;
  if (careless && scene_.Fault(25)) return;
  const absl::Time soonest = scene_.timeline.now() + Delay();
  // Even what overtakes others never arrives before the hello.
  const bool overtakes = careless && scene_.Fault(10);
  const absl::Time at = std::max(soonest, stream.last_up) + absl::Microseconds(1);
  Deliver(link, event, at);
  if (careless && scene_.Fault(20)) {
    const absl::Time again = at + scene_.chance.Milliseconds(0, 300);
    Deliver(link, event, again);
  }
  if (!overtakes) stream.last_up = at;
}

void Wire::TellWorker(LinkId link, const std::function<bool(WorkerEnd&)>& tell) {
  const auto found = streams_.find(link);
  if (found == streams_.end() || found->second.worker_gone) return;
  if (tell(*found->second.end)) return;
  scene_.timeline.After(absl::Milliseconds(100), [this, link, tell] { TellWorker(link, tell); });
}

void Wire::ToWorker(LinkId link, std::function<bool(WorkerEnd&)> tell) {
  const auto found = streams_.find(link);
  if (found == streams_.end() || found->second.cut) return;
  Stream& stream = found->second;
  stream.last_down =
      std::max(scene_.timeline.now() + Delay(), stream.last_down + absl::Microseconds(1));
  scene_.timeline.At(stream.last_down, [this, link, tell = std::move(tell)] {
    const auto there = streams_.find(link);
    if (there != streams_.end() && !there->second.cut) TellWorker(link, tell);
  });
}

void Wire::Down(const Welcome& welcome) {
  ToWorker(welcome.link,
           [welcome](WorkerEnd& end) { return end.OnWelcome(welcome.link, welcome); });
}

void Wire::Down(const SendDirective& directive) {
  ToWorker(directive.link, [directive](WorkerEnd& end) {
    return end.OnDirective(directive.link, directive.directive);
  });
}

void Wire::CloseByCoordinator(const CloseLink& close) {
  ToWorker(close.link, [close](WorkerEnd& end) { return end.OnClosed(close.link, close.status); });
}

void Wire::CloseByWorker(LinkId link) {
  const auto found = streams_.find(link);
  if (found == streams_.end()) return;
  found->second.worker_gone = true;
  const absl::Time at = std::max(scene_.timeline.now() + Delay(), found->second.last_up);
  Deliver(link, WorkerDetached{link}, at + absl::Microseconds(1));
}

void Wire::Cut(LinkId link) {
  const auto found = streams_.find(link);
  if (found == streams_.end() || found->second.cut) return;
  found->second.cut = true;
  const auto closed = [link](WorkerEnd& end) {
    return end.OnClosed(link, absl::UnavailableError("cut"));
  };
  scene_.timeline.After(scene_.chance.Milliseconds(1, 1500),
                        [this, link] { coordinator_(WorkerDetached{link}); });
  scene_.timeline.After(scene_.chance.Milliseconds(1, 1500),
                        [this, link, closed] { TellWorker(link, closed); });
}

void Wire::CoordinatorDied() {
  for (auto& [link, stream] : streams_) {
    if (stream.cut) continue;
    stream.cut = true;
    const auto closed = [link = link](WorkerEnd& end) {
      return end.OnClosed(link, absl::UnavailableError("espalierd is gone"));
    };
    scene_.timeline.After(scene_.chance.Milliseconds(1, 20),
                          [this, link = link, closed] { TellWorker(link, closed); });
  }
}

}  // namespace espalier::sim
