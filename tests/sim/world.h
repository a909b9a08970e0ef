// World and its RankProcesses: one generation as the coordinator could meet it: processes attach,
// agree, commit steps in lock-step, obey rank 0's directive at boundaries, die, freeze and finish.
// Lives as long as the simulated run. Used by tests/sim. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/event.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"
#include "tests/sim/world_options.h"

namespace espalier::sim {

class RankProcess;

class World {
 public:
  struct Hooks {
    // Before a step is committed.
    std::function<void(const World&)> committing;
    // No process is left.
    std::function<void(World&)> ended;
    // Whether somebody listens at the coordinator's address.
    std::function<bool()> coordinator_up;
  };
  World(Scene& scene, Wire& wire, WorldOptions options, Hooks hooks);
  ~World();

  void Start();
  // Ends every process, frozen or not.
  void KillAll();
  // One process vanishes; mpirun ends the others soon after.
  void CrashRank(size_t rank);
  void FreezeRank(size_t rank, absl::Duration time);
  void CutRank(size_t rank);  // breaks its stream
  // A rank, or every one, meets an error of its own, says so, and exits.
  void FailRank(size_t rank, absl::StatusCode code);
  void FailEverywhere(absl::StatusCode code);

  bool over() const { return over_; }
  bool unharmed() const { return unharmed_; }  // nothing was or will be done to it
  const WorldOptions& options() const { return options_; }
  const JobId& job() const { return options_.key.job; }
  Generation generation() const { return options_.key.generation; }
  Step step() const { return step_; }
  size_t size() const { return ranks_.size(); }

 private:
  friend class RankProcess;
  enum class Stage { kJoining, kTraining, kLeaving };

  int64_t total_steps() const { return options_.spec.train().steps(); }
  bool AllCanMove() const;
  void After(absl::Duration delay, void (World::*next)());
  // Runs `next` when every rank moves; gives up when one does not for too long.
  void WhenAllMove(void (World::*next)());
  void TryJoin();
  // Each rank looks at its disk; the newest state of all is what they start from.
  void Agree();
  Step& DiskOf(size_t rank);
  void Boundary();
  void Commit();
  void WriteCheckpoint();
  void Leave(Outcome outcome, const std::string& reason);
  void GiveUp();
  void OnRankEnded();

  Scene& scene_;
  Wire& wire_;
  WorldOptions options_;
  Hooks hooks_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  Stage stage_ = Stage::kJoining;
  Step step_;
  // Of the first welcome.
  std::optional<Step> least_;
  int64_t obeyed_checkpoint_ = 0;
  int64_t collective_ = 0;
  Phase phase_ = Phase::kStarting;
  std::optional<absl::Time> stalled_since_;
  bool over_ = false;
  bool unharmed_;
};

// One process of a world: its life, its stream, and what it has to say.
class RankProcess : public WorkerEnd {
 public:
  RankProcess(World& world, Rank rank) : world_(world), rank_(rank) {}

  void Begin();
  void Die();  // vanishes; what it sent still arrives
  void Freeze(absl::Duration time);
  void Cut();
  // Says its last word and exits.
  void Finish(Outcome outcome, const std::string& reason,
              absl::StatusCode code = absl::StatusCode::kUnknown);

  bool dead() const { return dead_; }
  bool finished() const { return finished_.has_value(); }
  bool moves() const { return begun_ && !dead_ && !frozen_ && !finished_; }
  bool joined() const { return joined_; }
  std::optional<Outcome> outcome() const { return outcome_; }
  const Directive& directive() const { return directive_; }

  void SayFound(Step step);
  void SayReady(Step next_step);
  void SayStep(const StepFigures& figures);
  void SayAck(Step next_step);
  void SayCheckpoint(Step step);

  bool OnWelcome(StreamId stream, const Welcome& welcome) override;
  bool OnDirective(StreamId stream, const Directive& directive) override;
  bool OnClosed(StreamId stream, const absl::Status& status) override;

 private:
  void Attach();
  void AttachLater();
  void KeepTelling();
  void Take(const Directive& directive);
  // Sends what there is of it on the present stream, for which it was re-addressed.
  template <typename Message>
  void Say(std::optional<Message>& message, Care care);

  World& world_;
  const Rank rank_;
  bool begun_ = false;
  bool frozen_ = false;
  bool dead_ = false;
  bool joined_ = false;
  bool welcomed_ = false;
  bool was_welcomed_ = false;
  std::optional<StreamId> stream_;
  std::optional<Outcome> outcome_;
  Directive directive_;
  // The newest message of each kind: said again on every new stream.
  std::optional<WorkerReady> ready_;
  std::optional<WorkerStepReported> step_;
  std::optional<DirectiveAcked> ack_;
  std::optional<WorkerFoundState> found_;
  std::optional<WorkerCheckpointed> checkpoint_;
  std::optional<WorkerFinished> finished_;
};

}  // namespace espalier::sim
