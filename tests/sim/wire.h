// Wire: the streams between simulated workers and agents and the coordinator. In order and lossless
// until they break, as gRPC's are; on top of that it drops, repeats and reorders messages whose
// loss the protocol promises to bear; and a node may be cut off, one way too. Used by tests/sim.
// One thread.
#pragma once

#include <google/protobuf/message_lite.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "coordinator/core/node.h"
#include "espalier/v1/worker.pb.h"
#include "tests/sim/scene.h"

namespace espalier::sim {

// A worker's or an agent's end of its streams.
class WorkerEnd {
 public:
  virtual ~WorkerEnd() = default;
  // False: not listening now (frozen); it is told again later.
  virtual bool OnMessage(StreamId id, const std::string& bytes) = 0;
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
  enum class Speaker { kWorker, kAgent };
  // What arrives; null: the stream is gone.
  using Receiver = std::function<void(StreamId, Speaker, const std::string*)>;
  Wire(Scene& scene, Receiver coordinator) : scene_(scene), coordinator_(std::move(coordinator)) {}

  // `serial`: of the certificate that it shows.
  StreamId Open(WorkerEnd* end, const NodeName& node, Speaker speaker = Speaker::kWorker,
                const std::string& serial = "");
  const std::string& SerialOf(StreamId id) const { return streams_.at(id).serial; }
  void Up(StreamId id, const google::protobuf::MessageLite& message, Care care);
  // A v1::AttachResponse to a worker, a v1::AgentCommand to an agent.
  void Down(StreamId id, const std::string& bytes);
  void CloseByCoordinator(StreamId id, const absl::Status& status);
  // The process ended: what it sent arrives, then the end of the stream.
  void CloseByWorker(StreamId id);
  // What is on its way is lost; both ends notice some time later.
  void Cut(StreamId id);
  // The same of all.
  void CutAll();
  // Nothing passes between the node and the coordinator for so long; both ends of its streams
  // notice some time later, perhaps only when it is over.
  enum class Way { kUp, kDown, kBoth };
  void Partition(const NodeName& node, absl::Duration time, Way way);
  // Something does not pass.
  bool Partitioned(const NodeName& node) const;
  // What the node says does not pass.
  bool Mute(const NodeName& node) const;
  // Nothing that is said on it arrives any more.
  bool Deaf(StreamId id) const;
  // When something last did not pass.
  absl::Time PartitionedUntil(const NodeName& node) const;
  // Every stream ends, and nobody listens.
  void CoordinatorDied();

 private:
  struct Stream {
    WorkerEnd* end = nullptr;
    Speaker speaker = Speaker::kWorker;
    NodeName node;
    std::string serial;
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
  // The coordinator hears that the stream is gone.
  void SayGone(StreamId id);
  void Deliver(StreamId id, std::optional<std::string> bytes, absl::Time at);
  void ToWorker(StreamId id, std::function<bool(WorkerEnd&)> tell);
  void TellWorker(StreamId id, const std::function<bool(WorkerEnd&)>& tell);

  Scene& scene_;
  Receiver coordinator_;
  std::map<StreamId, Stream> streams_;
  std::map<NodeName, Barrier> barriers_;
  StreamId next_{1};
};

}  // namespace espalier::sim
