// WorkerService over gRPC: carries messages between the workers' streams and the loop's inbox, and
// decides nothing. A stream reads its next message when the loop has taken the last one, and keeps
// at most one welcome and one directive to write, so a slow loop or worker costs no memory. Used by
// daemon.cc. Thread rule: reactions run on gRPC's threads; WorkerStreams is called by the loop.
#pragma once

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/loop/outlets.h"
#include "coordinator/service/stream_places.h"
#include "espalier/v1/worker.grpc.pb.h"

namespace espalier {

class AttachStream;

class AttachService : public v1::WorkerService::CallbackService, public WorkerStreams {
 public:
  // `inbox` and `clock` outlive the service. More streams are refused with RESOURCE_EXHAUSTED.
  AttachService(Inbox& inbox, Clock& clock, StreamPlaces::Limits limits = {});
  ~AttachService() override;

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override;

  void Send(StreamId id, v1::AttachResponse message) override;
  void Close(StreamId id, const absl::Status& status) override;

  // Ends streams that have not said hello in time. To be called a few times a second.
  void CloseSilent();
  // Ends every stream and refuses new ones, for a clean stop: UNAVAILABLE makes workers come again.
  void CloseAll();

 private:
  std::shared_ptr<AttachStream> Find(StreamId id);
  void HelloSaid(StreamId id);
  void Forget(StreamId id);

  Inbox& inbox_;
  Clock& clock_;
  absl::Mutex mutex_;
  StreamPlaces places_ ABSL_GUARDED_BY(mutex_);
  std::map<StreamId, std::shared_ptr<AttachStream>> streams_ ABSL_GUARDED_BY(mutex_);
  StreamId next_ ABSL_GUARDED_BY(mutex_){1};
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
