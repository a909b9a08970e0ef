// ControlClient: a worker's tie to whoever decides what it does. AttachClient (attach_client.h)
// talks to espalierd; StandaloneClient (standalone_client.h) decides for itself: run to the end.
// Used by worker/train, worker/state and worker/session.cc. No gRPC in this header.
// Thread rule: every method may be called from any thread; Report never blocks.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "espalier/v1/worker.pb.h"
#include "worker/control/progress.h"

namespace espalier {

class ControlClient {
 public:
  virtual ~ControlClient() = default;

  // Introduces this worker and waits for the answer. FAILED_PRECONDITION: fenced, exit.
  // DEADLINE_EXCEEDED: nobody answered in time, which starts again whenever espalierd says that the
  // job cannot be taken up yet. Called once, before anything else.
  virtual absl::StatusOr<v1::Welcome> Attach(const v1::Hello& hello, absl::Duration timeout) = 0;

  // The newest directive known here (rank 0's is the one that counts).
  virtual v1::Directive directive() const = 0;
  // Waits until directive().number() > number, at most for `timeout`; true if so.
  virtual bool WaitForDirectiveAfter(int64_t number, absl::Duration timeout) = 0;

  // Whether steps may be begun and checkpoints published: the coordinator wanted this generation a
  // lease ago or later. Waits for that, at most for `timeout`. An error: never again; fenced, or
  // nobody has renewed the lease for so long that nobody will.
  virtual absl::StatusOr<bool> WaitForLease(absl::Duration timeout) = 0;

  // Queues a message (ready, step, evaluation, checkpoint, ack). While the coordinator is away the
  // newest messages of each kind are kept and sent on re-attaching.
  virtual void Report(v1::AttachRequest message) = 0;
  // Sends the last message and waits until it has left, at most for `timeout`.
  virtual absl::Status Finish(const v1::Finished& finished, absl::Duration timeout) = 0;

  // Non-OK once this worker is fenced: it must stop at once and leave nothing behind.
  virtual absl::Status status() const = 0;
  virtual ProgressBoard& progress() = 0;
};

}  // namespace espalier
