#include "coordinator/service/attach_stream.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/call.h"

namespace espalier {
namespace {

// A worker of an mpirun that a person started names no job until it was welcomed to one.
absl::Status CheckHello(const Caller& caller, const v1::Hello& hello) {
  const NodeName node(hello.node());
  return hello.job_id().empty() ? CheckStartsByHand(caller, node) : CheckSpeaksFor(caller, node);
}

}  // namespace

AttachStream::AttachStream(StreamId id, Inbox& inbox, Caller caller,
                           std::function<void()> hello_said, std::function<void()> forget)
    : id_(id),
      inbox_(inbox),
      caller_(std::move(caller)),
      hello_said_(std::move(hello_said)),
      forget_(std::move(forget)) {}

void AttachStream::Start() { ReadOn(); }

void AttachStream::Send(v1::AttachResponse message) {
  {
    absl::MutexLock lock(&mutex_);
    outbox_.Put(std::move(message));
  }
  Act();
}

void AttachStream::Close(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!close_) close_ = status;
  }
  Act();
}

void AttachStream::ReadOn() {
  {
    absl::MutexLock lock(&mutex_);
    read_wanted_ = true;
  }
  Act();
}

void AttachStream::Act() {
  const std::shared_ptr<AttachStream> self = shared_from_this();  // the end may forget this object
  operations_.Run([this] {
    for (;;) {
      switch (NextOperation()) {
        case Operation::kNone:
          return;
        case Operation::kRead:
          StartRead(&incoming_);
          break;
        case Operation::kWrite:
          StartWrite(&outgoing_);
          break;
        case Operation::kFinish:
          Finish(ToGrpc(CloseStatus()));
          return;
      }
    }
  });
}

// The end comes when nothing is left to write.
AttachStream::Operation AttachStream::NextOperation() {
  absl::MutexLock lock(&mutex_);
  if (finished_) return Operation::kNone;
  if (std::exchange(read_wanted_, false)) return Operation::kRead;
  if (writing_) return Operation::kNone;
  if (std::optional<v1::AttachResponse> next = outbox_.Take()) {
    outgoing_ = *std::move(next);
    writing_ = true;
    return Operation::kWrite;
  }
  if (!close_) return Operation::kNone;
  finished_ = true;
  return Operation::kFinish;
}

absl::Status AttachStream::CloseStatus() {
  absl::MutexLock lock(&mutex_);
  return close_.value_or(absl::OkStatus());
}

void AttachStream::DropOutgoing() {
  absl::MutexLock lock(&mutex_);
  outbox_.Clear();
}

void AttachStream::ReportClosed() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(reported_closed_, true)) return;
  }
  inbox_.Put(StreamClosed{id_});
}

void AttachStream::OnReadDone(bool ok) {
  if (!ok) {
    ReportClosed();
    Close(absl::OkStatus());
    return;
  }
  if (incoming_.has_hello()) {
    const absl::Status allowed = CheckHello(caller_, incoming_.hello());
    if (!allowed.ok()) return Close(allowed);
    hello_said_();
  }
  StreamMessage message = {id_, std::move(incoming_),
                           [self = shared_from_this()] { self->ReadOn(); }};
  if (!inbox_.Put(std::move(message))) {
    Close(absl::UnavailableError("espalierd is stopping; attach again"));
  }
}

void AttachStream::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (ok) return Act();
  DropOutgoing();
  Close(absl::UnavailableError("the stream is broken"));
}

void AttachStream::OnCancel() {
  DropOutgoing();
  Close(absl::CancelledError("the worker has gone"));
}

void AttachStream::OnDone() {
  ReportClosed();
  const std::function<void()> forget = forget_;  // the call ends this object
  forget();
}

}  // namespace espalier
