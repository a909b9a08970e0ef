#include "coordinator/service/attach_service.h"

#include <utility>
#include <vector>

#include "common/rpc/call.h"
#include "coordinator/service/attach_stream.h"

namespace espalier {
namespace {

// Ends a stream that never became one.
class RefusedStream : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

AttachService::AttachService(Inbox& inbox, Clock& clock, StreamPlaces::Limits limits)
    : inbox_(inbox), clock_(clock), places_("workers", limits) {}

AttachService::~AttachService() = default;

grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* AttachService::Attach(
    grpc::CallbackServerContext* context) {
  Caller caller = CallerOf(*context);
  std::shared_ptr<AttachStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) {
      return new RefusedStream(absl::UnavailableError("espalierd is stopping; attach again"));
    }
    const StreamId id = std::exchange(next_, next_.next());
    const absl::Status place = places_.Take(id, caller, clock_.Monotonic());
    if (!place.ok()) return new RefusedStream(place);
    stream = std::make_shared<AttachStream>(
        id, inbox_, std::move(caller), [this, id] { HelloSaid(id); }, [this, id] { Forget(id); });
    streams_.emplace(id, stream);
  }
  stream->Start();
  return stream.get();
}

std::shared_ptr<AttachStream> AttachService::Find(StreamId id) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

void AttachService::HelloSaid(StreamId id) {
  absl::MutexLock lock(&mutex_);
  places_.HelloSaid(id);
}

void AttachService::Forget(StreamId id) {
  std::shared_ptr<AttachStream> last;  // destroyed after the lock
  absl::MutexLock lock(&mutex_);
  places_.Free(id);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  last = std::move(found->second);
  streams_.erase(found);
}

void AttachService::Send(StreamId id, v1::AttachResponse message) {
  if (std::shared_ptr<AttachStream> stream = Find(id)) stream->Send(std::move(message));
}

void AttachService::Close(StreamId id, const absl::Status& status) {
  if (std::shared_ptr<AttachStream> stream = Find(id)) stream->Close(status);
}

void AttachService::CloseSilent() {
  std::vector<StreamId> overdue;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    overdue = places_.TakeOverdue(clock_.Monotonic());
    if (!overdue.empty()) why = places_.Overdue();
  }
  for (const StreamId id : overdue) Close(id, why);
}

void AttachService::CloseAll() {
  std::vector<std::shared_ptr<AttachStream>> open;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (const auto& [id, stream] : streams_) open.push_back(stream);
  }
  for (const auto& stream : open) {
    stream->Close(absl::UnavailableError("espalierd is stopping; attach again"));
  }
}

}  // namespace espalier
