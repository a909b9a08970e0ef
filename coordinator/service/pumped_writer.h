// PumpedWriter: the server's end of one server stream, fed from a MessageSource by the pump and, as
// long as there is more, by its own finished writes. Private to the operator service.
// Thread rule: any thread. The lock is recursive because gRPC may run a reaction inside the very
// call that starts an operation.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "common/rpc/status.h"
#include "coordinator/service/stream_pump.h"

namespace espalier {

template <typename Message>
struct NextMessage {
  // Absent: nothing now.
  std::optional<Message> message;
  // Set: the stream ends after the message.
  std::optional<absl::Status> end;
};

template <typename Message>
class MessageSource {
 public:
  virtual ~MessageSource() = default;
  // `now` is monotonic. Not called again after an end.
  virtual NextMessage<Message> Next(absl::Duration now) = 0;
};

template <typename Message>
class PumpedWriter : public grpc::ServerWriteReactor<Message>,
                     public PumpedStream,
                     public std::enable_shared_from_this<PumpedWriter<Message>> {
 public:
  // The stream, owned by the pump until it is done; or one that is refused.
  static grpc::ServerWriteReactor<Message>* Open(StreamPump& pump,
                                                 std::unique_ptr<MessageSource<Message>> source) {
    auto writer = std::make_shared<PumpedWriter>(pump, std::move(source));
    const absl::Status added = pump.Add(writer);
    if (!added.ok()) return Refuse(added);
    writer->Pump(pump.now());
    return writer.get();
  }
  static grpc::ServerWriteReactor<Message>* Refuse(const absl::Status& status) {
    class Refused : public grpc::ServerWriteReactor<Message> {
     public:
      explicit Refused(const absl::Status& why) { this->Finish(ToGrpc(why)); }
      void OnDone() override { delete this; }
    };
    return new Refused(status);
  }

  PumpedWriter(StreamPump& pump, std::unique_ptr<MessageSource<Message>> source)
      : pump_(pump), source_(std::move(source)) {}

  void Pump(absl::Duration now) override {
    std::lock_guard lock(mutex_);
    if (writing_ || finished_) return;
    if (end_) return End();
    NextMessage<Message> next = source_->Next(now);
    end_ = next.end;
    if (next.message) {
      outgoing_ = *std::move(next.message);
      writing_ = true;
      this->StartWrite(&outgoing_);
    } else if (end_) {
      End();
    }
  }
  void Close(const absl::Status& status) override {
    std::lock_guard lock(mutex_);
    if (!end_) end_ = status;
    if (!writing_ && !finished_) End();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) return Close(absl::CancelledError("the client has gone"));
    Pump(pump_.now());
  }
  void OnCancel() override { Close(absl::CancelledError("the client has gone")); }
  void OnDone() override {
    StreamPump& pump = pump_;
    pump.Remove(this->shared_from_this());
  }

 private:
  void End() {
    finished_ = true;
    this->Finish(ToGrpc(*end_));
  }

  StreamPump& pump_;
  const std::unique_ptr<MessageSource<Message>> source_;
  std::recursive_mutex mutex_;
  Message outgoing_;
  std::optional<absl::Status> end_;
  bool writing_ = false;
  bool finished_ = false;
};

}  // namespace espalier
