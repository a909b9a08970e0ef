#include "coordinator/service/attach_stream.h"

#include <utility>

#include "common/rpc/status.h"

namespace espalier {

AttachStream::AttachStream(LinkId link, Inbox& inbox, std::function<void()> forget)
    : link_(link), inbox_(inbox), forget_(std::move(forget)) {}

void AttachStream::Start() { ReadOn(); }

void AttachStream::Send(v1::AttachResponse message) {
  std::lock_guard lock(mutex_);
  (message.has_welcome() ? welcome_ : directive_) = std::move(message);
  WriteOn();
}

void AttachStream::Close(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (!close_) close_ = status;
  WriteOn();
}

void AttachStream::ReadOn() {
  std::lock_guard lock(mutex_);
  if (!finished_) StartRead(&incoming_);
}

// Starts the next write, or the end when nothing is left to write.
void AttachStream::WriteOn() {
  if (writing_ || finished_) return;
  std::optional<v1::AttachResponse>& next = welcome_ ? welcome_ : directive_;
  if (next) {
    outgoing_ = *std::exchange(next, std::nullopt);
    writing_ = true;
    StartWrite(&outgoing_);
  } else if (close_) {
    finished_ = true;
    Finish(ToGrpc(*close_));
  }
}

void AttachStream::ReportClosed() {
  if (!std::exchange(reported_closed_, true)) inbox_.Put(LinkClosed{link_});
}

void AttachStream::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (ok) {
    LinkMessage message = {link_, std::move(incoming_),
                           [self = shared_from_this()] { self->ReadOn(); }};
    if (inbox_.Put(std::move(message))) return;
    Close(absl::UnavailableError("espalierd is stopping; attach again"));
    return;
  }
  ReportClosed();
  Close(absl::OkStatus());
}

void AttachStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) {
    welcome_.reset();
    directive_.reset();
    Close(absl::UnavailableError("the stream is broken"));
    return;
  }
  WriteOn();
}

void AttachStream::OnCancel() {
  std::lock_guard lock(mutex_);
  welcome_.reset();
  directive_.reset();
  Close(absl::CancelledError("the worker has gone"));
}

void AttachStream::OnDone() {
  {
    std::lock_guard lock(mutex_);
    ReportClosed();
  }
  const std::function<void()> forget = forget_;  // the call ends this object
  forget();
}

}  // namespace espalier
