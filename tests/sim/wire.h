// Wire: the streams between simulated workers and agents and the coordinator. In order and lossless
// until they break, as gRPC's are; on top of that it drops, repeats and reorders messages whose
// loss the protocol promises to bear; and a node may be cut off, one way too. Used by tests/sim.
// One thread.
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
  virtual bool OnRenewal(StreamId, int64_t /*beat*/) { return true; }
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
  StreamId Open(WorkerEnd* end, const NodeName& node, Speaker speaker = Speaker::kWorker);
  void Up(StreamId id, const Event& event, Care care);
  void Down(const Welcome& welcome);
  void Down(const SendDirective& directive);
  void Down(const RenewLease& renewal);
  void CloseByCoordinator(const CloseStream& close);
  // The process ended: what it sent arrives, then the end of the stream.
  void CloseByWorker(StreamId id);
  // What is on its way is lost; both ends notice some time later.
  void Cut(StreamId id);
  // Nothing passes between the node and the coordinator for so long; both ends of its streams
  // notice some time later, perhaps only when it is over.
  enum class Way { kUp, kDown, kBoth };
  void Partition(const NodeName& node, absl::Duration time, Way way);
  // Something does not pass.
  bool Partitioned(const NodeName& node) const;
  // When something last did not pass.
  absl::Time PartitionedUntil(const NodeName& node) const;
  // Every stream ends, and nobody listens.
  void CoordinatorDied();

 private:
  struct Stream {
    WorkerEnd* end = nullptr;
    Speaker speaker = Speaker::kWorker;
    NodeName node;
    // Nothing sent earlier arrives after a cut.
    bool cut = false;
    // Something on the way was lost to a partition, and with it all that follows.
    bool up_lost = false;
    bool down_lost = false;
    bool worker_gone = false;
    absl::Time last_up;
    absl::Time last_down;
  };
  struct Barrier {
    absl::Time up_until = absl::InfinitePast();
    absl::Time down_until = absl::InfinitePast();
  };
  absl::Duration Delay();
  // Whether what is on its way arrives; what is lost breaks the stream.
  bool PassesUp(StreamId id);
  bool PassesDown(StreamId id);
  void BreakSoon(StreamId id);
  // What the coordinator hears when the stream is gone.
  Event Gone(StreamId id) const;
  void Deliver(StreamId id, const Event& event, absl::Time at);
  void ToWorker(StreamId id, std::function<bool(WorkerEnd&)> tell);
  void TellWorker(StreamId id, const std::function<bool(WorkerEnd&)>& tell);

  Scene& scene_;
  Receiver coordinator_;
  std::map<StreamId, Stream> streams_;
  std::map<NodeName, Barrier> barriers_;
  StreamId next_{1};
};

}  // namespace espalier::sim
