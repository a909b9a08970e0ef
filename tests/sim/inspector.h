// Inspector: the rules that must hold whatever happens. It looks at every event, every effect and
// every step that a world commits, and names the first rule that is broken. Used by
// sim_coordinator.h. One thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "espalier/v1/worker.pb.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_journal.h"
#include "tests/sim/world.h"

namespace espalier::sim {

class Inspector {
 public:
  using Worlds = std::vector<std::unique_ptr<World>>;
  Inspector(Scene& scene, const SimJournal& journal, const Worlds& worlds)
      : scene_(scene), journal_(journal), worlds_(worlds) {}

  // A batch is about to be journaled; is journaled.
  void OnWriting(const std::vector<Effect>& effects);
  void OnWritten();
  // So many events were decided and journaled, and nothing of what follows is done yet.
  void OnPublished(const ClusterState& state, int64_t events);
  // Several events were decided together: what one wanted, another may have taken back.
  bool batched() const { return batched_; }
  // Before it is done.
  void OnSend(StreamId stream, const v1::AttachResponse& message);
  void OnLaunch(const Launch& launch);
  void OnKill(const Kill& kill);
  // The coordinator has looked at its deadlines, as it does every `tick`.
  void OnLooked(absl::Time listening_since, absl::Duration tick);
  // The ranks of a world have agreed where to start from.
  void OnAgreed(const World& world);
  // A world is about to begin a step.
  void OnBegin(const World& world);
  // A world is about to commit a step.
  void OnCommit(const World& world);
  // A rank is about to publish a checkpoint.
  void OnCheckpoint(const World& world, size_t rank);
  // A coordinator started: what was not journaled is forgotten.
  void OnRestart(absl::Time now);
  // When nothing goes wrong any more and nothing is left to do.
  void OnQuiet();

 private:
  void CheckJob(const Job& job, absl::Time now);
  void CheckGuests(const AppendEvent& row);
  void CheckHistory(const AppendEvent& row);
  void CheckFault(const JobId& job);
  void CheckFailed(const JobRecord& record);
  void CheckFinal(const Effect& effect);
  void CheckDirective(const GenerationKey& key, const Directive& directive);
  void CheckLaunchRows();
  void CheckRenewal(const GenerationKey& key);
  void CheckAgentOf(const NodeName& name);
  void NoteRestart(const JobId& job);
  void CheckRestarts(const Job& job, absl::Time now);
  // Who is not the newest, or not wanted any more, does nothing that lasts.
  void CheckWanted(const World& world, const std::string& does);
  void CheckShares(const World& world);
  bool Require(bool rule, const std::string& what);

  Scene& scene_;
  const SimJournal& journal_;
  const Worlds& worlds_;
  // Committed steps seen in a generation: they never go back.
  std::map<GenerationKey, Step> steps_;
  std::map<GenerationKey, absl::Time> begun_;
  std::map<JobId, JobState> states_;
  // When the faults were met after which a job was started again without a step that is new to
  // the coordinator, and the furthest that it knows.
  std::map<JobId, std::vector<absl::Time>> relaunches_;
  std::map<JobId, absl::Time> last_fault_;
  std::map<JobId, Step> furthest_;
  // Restarts that were counted since then.
  std::map<JobId, int32_t> restarts_;
  // When the faults were met that were booked on a job, in milliseconds.
  std::map<JobId, std::set<int64_t>> faults_;
  // Of which it was decided that they fail.
  std::set<JobId> judged_;
  std::map<StreamId, GenerationKey> streams_;
  bool batched_ = false;
  const ClusterState* state_ = nullptr;
  // Journaled since the state was published last.
  std::vector<Effect> written_;
};

}  // namespace espalier::sim
