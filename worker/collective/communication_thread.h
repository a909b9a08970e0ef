// CommunicationThread: the thread that starts MPI, makes every call of it, and ends it. Others hand
// it operations and wait for them. It polls, with growing pauses when nothing moves.
// Used by mpi_collective.cc.
// Thread rule: public methods from any thread; the object lives as long as the thread, even where
// its owner has given up on a call of MPI that does not return.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "worker/collective/beacon.h"
#include "worker/collective/collective.h"
#include "worker/collective/exchange.h"
#include "worker/collective/mpi_world.h"
#include "worker/collective/transport.h"

namespace espalier {

class CommunicationThread : public std::enable_shared_from_this<CommunicationThread> {
 public:
  struct World {
    int rank = 0;
    int size = 1;
    int links = 0;
  };
  CommunicationThread(MpiOptions options, Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  // Starts the thread and waits until MPI is up; the errors of MpiCollective::Start.
  absl::StatusOr<World> Start() ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t Enqueue(const Operation& operation) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Wait(int64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Quiesce() ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Finish(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails what is queued and waits until the thread has ended, at most for the failure timeout; a
  // thread that is stuck in MPI is left behind. The owner's last call.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  CollectiveStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  PeerReport State() const;
  void Main() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<World> Begin();
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Perform(const Operation& operation) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Drain(const Exchange& exchange) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckWait(absl::Duration moved_at, absl::Duration now) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The next operation; nothing after a short while without one, or when there is to be none.
  std::optional<Operation> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || !failure_.ok() || finishing_;
  }
  void AddArrivals() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until `over`, with the lock held; false, having failed everything, when meanwhile one
  // call of MPI does not return.
  template <typename Over>
  bool Await(const Over& over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AwaitEnd(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(absl::Status reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MpiOptions options_;
  Clock& clock_;
  std::thread thread_;  // of the owner

  // Of the thread alone.
  std::unique_ptr<MpiWorld> world_;
  std::unique_ptr<MpiMessages> messages_;
  std::unique_ptr<Beacon> beacon_;
  ScratchMemory scratch_;

  std::atomic<int64_t> turns_{0};  // polls and naps: grows while the thread is not inside a call
  std::atomic<int64_t> enqueued_{0};
  std::atomic<int64_t> completed_{0};
  std::atomic<int64_t> bytes_sent_{0};

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;  // anything of the following
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  World facts_ ABSL_GUARDED_BY(mutex_);
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  bool performing_ ABSL_GUARDED_BY(mutex_) = false;  // the operation that was taken last
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Arrivals> arrivals_ ABSL_GUARDED_BY(mutex_);  // by rank
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
