// RankProcess: one process of a simulated world: its life, its stream, its lease, and what it has
// to say. Used by world.h. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/event.h"
#include "espalier/v1/worker.pb.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"
#include "tests/sim/world_options.h"

namespace espalier::sim {

// What the processes of a world share.
class RankWorld {
 protected:
  friend class RankProcess;
  RankWorld(Scene& scene, Wire& wire, WorldOptions options)
      : scene_(scene), wire_(wire), options_(std::move(options)) {}
  virtual ~RankWorld() = default;
  virtual void TryJoin() = 0;
  virtual void OnRankEnded() = 0;
  // Whether somebody listens at the coordinator's address.
  virtual bool CoordinatorUp() const = 0;
  // Number of the directive that rank 0 has.
  virtual int64_t LeaderObeys() const = 0;

  Scene& scene_;
  Wire& wire_;
  WorldOptions options_;
  Step step_;
  // Of the first welcome.
  std::optional<Step> least_;
  int64_t collective_ = 0;
  Phase phase_ = Phase::kStarting;
  std::optional<absl::Time> stalled_since_;
};

class RankProcess : public WorkerEnd {
 public:
  RankProcess(RankWorld& world, Rank rank) : world_(world), rank_(rank) {}

  void Begin();
  void Die();  // vanishes; what it sent still arrives
  void Freeze(absl::Duration time);
  void Cut();
  // Says its last word and exits.
  void Finish(Outcome outcome, const std::string& reason,
              absl::StatusCode code = absl::StatusCode::kUnknown);

  // The same, for want of these, or of somebody.
  void GiveUp(const std::vector<Rank>& silent);

  bool dead() const { return dead_; }
  bool finished() const { return finished_.has_value(); }
  bool moves() const { return begun_ && !dead_ && !frozen_ && !finished_; }
  bool joined() const { return joined_; }
  std::optional<Outcome> outcome() const { return outcome_; }
  const Directive& directive() const { return directive_; }
  absl::Time lease_until() const { return lease_until_; }
  // What is trained is to outlive the process, as of this history; absent: it is not.
  std::optional<int64_t> history() const { return history_; }
  // When it last sent anything that may have arrived.
  absl::Time said_at() const { return said_at_; }

  void SayFound(Step step);
  void SayReady(Step next_step);
  void SayStep(const StepFigures& figures);
  void SayAck(Step next_step);
  // Published; or, with an error, not.
  void SayCheckpoint(Step step, const std::string& error = "");

  bool OnMessage(StreamId stream, const std::string& bytes) override;
  bool OnClosed(StreamId stream, const absl::Status& status) override;

 private:
  const NodeName& node() const { return world_.options_.nodes[static_cast<size_t>(rank_.value())]; }
  absl::Duration ByOwnClock(absl::Duration time) const {
    return world_.scene_.ByClockOf(node(), time);
  }
  void Attach();
  void AttachLater();
  void Leave(Outcome outcome, v1::Finished finished);
  void KeepTelling();
  void OnWelcome(const v1::Welcome& welcome);
  void Take(const v1::Directive& directive);
  void Send(const v1::AttachRequest& message, Care care);
  // Sends what there is of it on the present stream.
  void Say(const std::optional<v1::AttachRequest>& message, Care care);

  RankWorld& world_;
  const Rank rank_;
  bool begun_ = false;
  bool frozen_ = false;
  bool dead_ = false;
  bool joined_ = false;
  bool welcomed_ = false;
  bool was_welcomed_ = false;
  std::optional<StreamId> stream_;
  absl::Time hello_at_;
  absl::Time said_at_ = absl::InfinitePast();
  absl::Duration lease_;
  absl::Time lease_until_ = absl::InfinitePast();
  std::optional<int64_t> history_;
  std::optional<Outcome> outcome_;
  Directive directive_;
  // The newest message of each kind: said again on every new stream.
  std::optional<v1::AttachRequest> ready_;
  std::optional<v1::AttachRequest> step_;
  std::optional<v1::AttachRequest> ack_;
  std::optional<v1::AttachRequest> found_;
  std::optional<v1::AttachRequest> checkpoint_;
  std::optional<v1::AttachRequest> finished_;
};

}  // namespace espalier::sim
