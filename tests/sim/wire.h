// Wire: the streams between simulated workers and agents and the coordinator. In order and lossless
// until they break, as gRPC's are; on top of that it drops, repeats and reorders messages whose
// loss the protocol promises to bear. Used by tests/sim. One thread.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "tests/sim/scene.h"

namespace espalier::sim {

// A worker's or an agent's end of its streams.
class WorkerEnd {
 public:
  virtual ~WorkerEnd() = default;
  // False: not listening now (frozen); it is told again later.
  virtual bool OnWelcome(StreamId id, const Welcome& welcome) = 0;
  virtual bool OnDirective(StreamId id, const Directive& directive) = 0;
  virtual bool OnClosed(StreamId id, const absl::Status& status) = 0;
};

enum class Care {
  // Arrives, unless the stream breaks.
  kKeep,
  // May be lost, repeated, or overtaken.
  kCareless,
};

class Wire {
 public:
  using Receiver = std::function<void(const Event&)>;
  Wire(Scene& scene, Receiver coordinator) : scene_(scene), coordinator_(std::move(coordinator)) {}

  enum class Speaker { kWorker, kAgent };
  StreamId Open(WorkerEnd* end, Speaker speaker = Speaker::kWorker);
  void Up(StreamId id, const Event& event, Care care);
  void Down(const Welcome& welcome);
  void Down(const SendDirective& directive);
  void CloseByCoordinator(const CloseStream& close);
  // The process ended: what it sent arrives, then the end of the stream.
  void CloseByWorker(StreamId id);
  // What is on its way is lost; both ends notice some time later.
  void Cut(StreamId id);
  // Every stream ends, and nobody listens.
  void CoordinatorDied();

 private:
  struct Stream {
    WorkerEnd* end = nullptr;
    Speaker speaker = Speaker::kWorker;
    // Nothing sent earlier arrives after a cut.
    bool cut = false;
    bool worker_gone = false;
    absl::Time last_up;
    absl::Time last_down;
  };
  absl::Duration Delay();
  // What the coordinator hears when the stream is gone.
  Event Gone(StreamId id) const;
  void Deliver(StreamId id, const Event& event, absl::Time at);
  void ToWorker(StreamId id, std::function<bool(WorkerEnd&)> tell);
  void TellWorker(StreamId id, const std::function<bool(WorkerEnd&)>& tell);

  Scene& scene_;
  Receiver coordinator_;
  std::map<StreamId, Stream> streams_;
  StreamId next_{1};
};

}  // namespace espalier::sim
