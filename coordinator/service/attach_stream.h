// AttachStream: the server's end of one worker's stream. Used by attach_service.cc only.
// Thread-safe. What to do next is decided under the lock and done without it, by one thread at a
// time, so that nothing follows Finish.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/server_credentials.h"
#include "coordinator/loop/attach_outbox.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/service/one_at_a_time.h"
#include "espalier/v1/worker.grpc.pb.h"

namespace espalier {

class AttachStream : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>,
                     public std::enable_shared_from_this<AttachStream> {
 public:
  // `hello_said` is called at a hello that may be said. `forget` is called once, last: it drops the
  // owner's pointer.
  AttachStream(StreamId id, Inbox& inbox, Caller caller, std::function<void()> hello_said,
               std::function<void()> forget);

  void Start();
  void Send(v1::AttachResponse message);
  void Close(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Operation { kNone, kRead, kWrite, kFinish };

  void ReadOn();
  // Starts the operations that are due.
  void Act();
  Operation NextOperation();
  absl::Status CloseStatus();
  // What waits to be written goes nowhere any more.
  void DropOutgoing();
  void ReportClosed();

  const StreamId id_;
  Inbox& inbox_;
  const Caller caller_;
  const std::function<void()> hello_said_;
  const std::function<void()> forget_;
  OneAtATime operations_;
  // gRPC's from the start of a read or write to its reaction.
  v1::AttachRequest incoming_;
  v1::AttachResponse outgoing_;

  absl::Mutex mutex_;
  AttachOutbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> close_ ABSL_GUARDED_BY(mutex_);
  bool read_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool reported_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
