// SimCoordinator: espalierd's real loop, life after life, on a simulated machine: it hears and
// sends messages as bytes, takes several at once, and may die at any write, message, launch, kill
// and reply. Used by simulation.h. One thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/loop/loop.h"
#include "tests/sim/inspector.h"
#include "tests/sim/requests.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/sim_launcher.h"
#include "tests/sim/sim_streams.h"
#include "tests/sim/wire.h"
#include "tests/sim/world.h"

namespace espalier::sim {

class SimCoordinator : private LoopObserver {
 public:
  using Worlds = std::vector<std::unique_ptr<World>>;
  struct Parts {
    Scene& scene;
    Wire& wire;
    Worlds& worlds;
    v1::ClusterSpec cluster;
  };
  explicit SimCoordinator(Parts parts);

  void Start();
  // Dies now; comes back some time later.
  void Crash();
  // Its machine sleeps for so long.
  void Suspend(absl::Duration time);
  // What has arrived on a stream; null: it is gone.
  void Hear(StreamId stream, Wire::Speaker speaker, const std::string* bytes);
  // False: nobody listens. The answer may never come.
  bool Ask(const OperatorRequest& request, Requests::Answered answered = nullptr);
  // The wall clock is corrected by hours; the journal's disk is full for a while.
  void Correct(absl::Duration off) { clock_.Correct(off); }
  void SetClockRate(double rate) { clock_.SetRate(rate); }
  void FillDisk(absl::Duration time) { disk_.Fill(time); }

  bool up() const { return up_; }
  // Somebody is there who answers.
  bool listens() const { return up_ && !suspended_; }
  // Empty while it is down.
  const ClusterState& state() const;
  const SimJournal& journal() const { return disk_.contents(); }
  Inspector& inspector() { return inspector_; }
  World::Hooks WorldHooks();

 private:
  // A stream is read on when what it said last has been dealt with.
  struct Unread {
    Wire::Speaker speaker = Wire::Speaker::kWorker;
    std::deque<std::string> messages;
    bool gone = false;
    bool in_inbox = false;
  };
  void ReadOn(StreamId stream);
  Input InputOf(StreamId stream, Wire::Speaker speaker, const std::string& bytes);
  void Put(Input input);
  void TurnSoon();
  void Turn();
  void KeepTicking(int64_t life);
  // Virtual time goes on while the loop's thread waits.
  void Pass(absl::Duration time);
  // Before something is done; false: espalierd has died by then.
  bool Lives(uint64_t one_in);
  void UseParts();
  bool Write();
  // What is left of a life that is over.
  void Bury();
  bool Dead() const { return loop_ == nullptr || dead_; }

  // LoopObserver.
  void Heard(const WorkerId&, const v1::AttachRequest&, absl::Duration) override {}
  void Attached(const WorkerId&, absl::Duration) override {}
  void Moved(const JobId&, JobState, JobState, const Event&, absl::Duration) override {}
  void Publish(const Publication& publication) override;
  void Stalled(const LoopStats&) override {}

  Parts parts_;
  SimClock clock_;
  NoFolders files_;
  SimDisk disk_;
  SimLauncher launcher_;
  SimStreams streams_;
  Inspector inspector_;
  Requests requests_;
  // The loop's, once it is published.
  const ClusterState* state_ = nullptr;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<Loop> loop_;
  std::map<StreamId, Unread> unread_;
  bool up_ = false;
  bool dead_ = false;
  bool turning_ = false;
  bool turn_planned_ = false;
  bool suspended_ = false;
  int64_t life_ = 0;
  // Since when nothing has kept it from listening.
  absl::Time listening_since_;
  // What this turn decides upon; and when the loop looks at its deadlines next.
  int64_t events_ = 0;
  absl::Duration tick_at_;
  // A launch was tried: when it failed, that is the next event.
  bool launched_ = false;
};

}  // namespace espalier::sim
