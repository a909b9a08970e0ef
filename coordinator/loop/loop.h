// Loop: the one thread that decides. It alone calls the core, and it alone applies the core's
// effects, always in this order: journal, (publication,) directives and streams, launches and
// kills, replies. All events that wait are taken together and journaled in one transaction.
// Invariant "Journal, then act": while the journal cannot be written, nothing is applied. Used by
// coordinator/service/daemon.cc.
//
// Thread rule: Start and Run (or Turn) belong to one thread; Stop may be called from any.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "coordinator/journal/journal.h"
#include "coordinator/launcher/launcher.h"
#include "coordinator/launcher/versions.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/loop/outlets.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

// All outlive the loop.
struct LoopParts {
  Clock* clock = nullptr;
  Journal* journal = nullptr;
  Launcher* launcher = nullptr;
  WorkerStreams* streams = nullptr;
  AgentStreams* agents = nullptr;
  Inbox* inbox = nullptr;
  LoopObserver* observer = nullptr;
  // Looked at until they are complete, and told to the core then; may be null.
  ProgramVersions* versions = nullptr;
  // Of the jobs' folders.
  FileSystem* files = &PosixFileSystem();
};

struct LoopOptions {
  v1::ClusterSpec cluster;
  // Holds jobs/ID.
  std::string state_dir;
  absl::Duration tick = absl::Milliseconds(100);
  // What only heartbeats have changed is published so often; what was decided, at once.
  absl::Duration publish_interval = absl::Milliseconds(100);
  // Between two attempts at a journal that cannot be written.
  absl::Duration journal_retry = absl::Seconds(1);
  // An error of the journal's disk, other than that it is full, may pass for so long.
  absl::Duration journal_patience = absl::Minutes(1);
};

class Loop {
 public:
  Loop(LoopParts parts, LoopOptions options);

  // Takes up what the journal says (jobs, nodes set aside, the generations that run) and publishes
  // it. What it leads to is applied by the first Turn.
  absl::Status Start();
  // Turns until Stop, or until the journal refuses for a reason that waiting does not mend, which
  // is returned; then answers what still waits with UNAVAILABLE.
  absl::Status Run();
  void Stop();
  // Waits for events, at most until the next tick is due, and deals with all that wait.
  void Turn();

 private:
  using Callback = std::function<void(absl::StatusOr<Answer>)>;

  // From outside to the core.
  void Take(Input input, std::vector<Event>& events);
  void TakeMessage(StreamMessage message, std::vector<Event>& events);
  void TakeCall(OperatorCall call, std::vector<Event>& events);
  void TakeTick(std::vector<Event>& events);
  void Decide(std::vector<Event> events);
  void DecideOne(const Event& event);
  void Moved(const JobRecord& record, const Event& event);
  void ForgetLaunches(const JobRecord& record);
  // The job of this stream is to be shown anew.
  void Touch(StreamId stream);

  // From the core to outside, in this order.
  void Apply();
  // Tries until it is done; false: a stop was asked for meanwhile, or trying again is pointless,
  // which stops the loop.
  bool Commit(const JournalBatch& batch);
  void Publish();
  // The first four are in the journal by then.
  void ApplyOne(const PersistJob&);
  void ApplyOne(const ForgetJob&);
  void ApplyOne(const PersistNode&);
  void ApplyOne(const AppendEvent&);
  void ApplyOne(const Welcome& effect);
  void ApplyOne(const SendDirective& effect);
  void ApplyOne(const RenewLease& effect);
  void ApplyOne(const CloseStream& effect);
  void ApplyOne(const DropMemory& effect);
  void ApplyOne(const Rehearse& effect);
  void ApplyOne(const Launch& effect);
  void ApplyOne(const Kill& effect);
  void ApplyOne(const Reply& effect);
  // In bytes, by the node's invitation or the cluster file; 0: none.
  int64_t MemoryLimitOf(const NodeName& name) const;
  absl::Status WriteJobFiles(const JobId& id);
  void Forget(const JobId& id);

  LoopParts parts_;
  const LoopOptions options_;
  SteadyTime time_;
  ClusterState state_;
  LoopStats stats_;

  RequestId next_request_{1};
  std::map<RequestId, Callback> waiting_;
  // Jobs that a submission may have made: their files are written before the reply.
  std::set<RequestId> submissions_;
  std::map<JobId, JobState> last_states_;
  // Of this journal, never told to anybody: makes the secret of every generation.
  std::string world_key_;
  // The highest number of a job in the journal, also of one that was forgotten.
  int64_t last_number_ = 0;
  // In the journal. A row goes with the record that says that nothing of its generation runs.
  std::set<GenerationKey> launches_;
  std::vector<Event> later_;
  std::optional<absl::Duration> next_tick_;
  absl::Duration next_publication_ = absl::ZeroDuration();
  std::atomic<bool> stopping_{false};
  absl::Status journal_status_;  // an error ends Run

  // Of the present turn.
  JournalBatch batch_;
  std::vector<Effect> effects_;
  std::set<JobId> touched_;
  std::vector<std::function<void()>> taken_;
};

}  // namespace espalier
