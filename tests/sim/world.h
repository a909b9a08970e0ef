// World: one generation as the coordinator could meet it: processes attach,
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
#include "tests/sim/world_rank.h"

namespace espalier::sim {

class World : private RankWorld {
 public:
  struct Hooks {
    // The ranks have agreed where to start from.
    std::function<void(const World&)> agreed;
    // Before a step is begun: what begins is committed, unless a rank is lost.
    std::function<void(const World&)> beginning;
    // Before a step is committed.
    std::function<void(const World&)> committing;
    // Before a rank's copy of a checkpoint is there.
    std::function<void(const World&, size_t rank)> publishing;
    // No process is left.
    std::function<void(World&)> ended;
    // Whether somebody listens at the coordinator's address.
    std::function<bool()> coordinator_up;
  };
  World(Scene& scene, Wire& wire, const WorldOptions& options, Hooks hooks);
  ~World() override;

  void Start();
  // Ends every process, frozen or not.
  void KillAll();
  // The same, but for some; mpirun is gone, and nobody looks after those any more. The nodes where
  // processes are left.
  std::vector<NodeName> KillSome(const std::function<bool(const NodeName&)>& reached);
  bool orphaned() const { return orphaned_; }
  std::vector<NodeName> LivingNodes() const;
  // Until then rank 0 begins steps, and publishes.
  absl::Time may_train_until() const;
  // One process vanishes; mpirun ends the others soon after.
  void CrashRank(size_t rank);
  void FreezeRank(size_t rank, absl::Duration time);
  void CutRank(size_t rank);  // breaks its stream
  // A rank, or every one, meets an error of its own, says so, and exits.
  void FailRank(size_t rank, absl::StatusCode code);
  void FailEverywhere(absl::StatusCode code);

  bool over() const { return over_; }
  bool unharmed() const { return unharmed_; }  // nothing was or will be done to it
  // Of the ranks that have not said their last word, when the one that is silent for longest has
  // spoken.
  absl::Time SilentSince() const;
  const WorldOptions& options() const { return options_; }
  const JobId& job() const { return options_.key.job; }
  Generation generation() const { return options_.key.generation; }
  Step step() const { return step_; }
  size_t size() const { return ranks_.size(); }
  // What rank 0 was told, of which every rank takes its part in the step at hand.
  const ShardPlan& plan() const { return plan_; }

 private:
  enum class Stage { kJoining, kTraining, kLeaving };
  // What a rank does of a checkpoint.
  struct Copy {
    bool done = false;
    std::string error;
  };

  int64_t total_steps() const { return options_.spec.train().steps(); }
  bool AllCanMove() const;
  // Those that the rank does not hear from.
  std::vector<Rank> SilentTo(size_t rank) const;
  bool AllReachEachOther() const;
  void After(absl::Duration delay, void (World::*next)());
  // Runs `next` when every rank moves; gives up when one does not for too long.
  void WhenAllMove(void (World::*next)());
  void TryJoin() override;
  // Each rank looks at its disk; the newest state of all is what they start from.
  bool StartsInVain();
  void Agree();
  Step& DiskOf(size_t rank);
  // The rank's memory that outlives it (world_memory.cc).
  void TakeMemory(size_t rank);
  Step MemoryOf(size_t rank) const;
  void Remember(Step step);
  enum class Whose { kOfWriters, kOfAll };
  void GiveBackMemory(Whose whose);
  void LetGoOfMemory(size_t rank);
  void Boundary();
  void Commit();
  // Writes a checkpoint, and goes on with `then` when every copy is written or has failed.
  void Save(void (World::*then)());
  // Begins one, which is written beside the steps that follow, at once or when the one before it is
  // written; then goes on with Boundary.
  void SaveBeside();
  void BeginCopies();
  void Publish(size_t rank, int64_t save);
  void AwaitCopies();
  // At a boundary, of one that is written beside.
  void NoteBeside();
  bool AllCopied() const;
  void TellOfCopies();
  // A copy of the last one is on a disk.
  bool Saved() const;
  void LeaveStopped();
  void LeaveCompleted();
  void Leave(Outcome outcome, const std::string& reason);
  void GiveUp();
  bool HoldsForLease();
  void Adopt(const ShardPlan& plan);
  double OwnSeconds(size_t rank);
  void OnRankEnded() override;
  bool CoordinatorUp() const override { return hooks_.coordinator_up(); }
  int64_t LeaderObeys() const override { return ranks_.front()->directive().number; }

  Hooks hooks_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  Stage stage_ = Stage::kJoining;
  int64_t obeyed_checkpoint_ = 0;
  ShardPlan plan_;
  // Of each rank: it has memory that outlives it.
  std::vector<bool> keeps_;
  // The checkpoint at hand, its step, and how many there were.
  std::vector<Copy> copies_;
  Step saved_step_;
  bool beside_ = false;  // it is written while steps go on
  void (World::*saved_)() = nullptr;
  int64_t saves_ = 0;
  bool over_ = false;
  bool orphaned_ = false;
  bool unharmed_;
};

}  // namespace espalier::sim
