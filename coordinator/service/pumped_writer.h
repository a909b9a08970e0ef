// PumpedWriter: the server's end of one server stream, fed from a MessageSource by the pump and, as
// long as there is more, by its own finished writes. Used by operator_service.cc only. Thread-safe;
// the source is asked by one thread at a time, without the lock.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/call.h"
#include "coordinator/service/one_at_a_time.h"
#include "coordinator/service/sources.h"
#include "coordinator/service/stream_pump.h"

namespace espalier {

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
    writer->Pump();
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

  void Pump() override {
    const auto self = this->shared_from_this();  // the end may forget this object
    turns_.Run([this] { Turn(); });
  }
  void Close(const absl::Status& status) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!end_) end_ = status;
    }
    Pump();
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (!ok) return Close(absl::CancelledError("the client has gone"));
    Pump();
  }
  void OnCancel() override { Close(absl::CancelledError("the client has gone")); }
  void OnDone() override {
    StreamPump& pump = pump_;
    pump.Remove(this->shared_from_this());
  }

 private:
  enum class Operation { kNone, kWrite, kFinish };

  // Writes what is new, unless a write is under way; ends the stream when it is over.
  void Turn() {
    if (Busy()) return;
    switch (Take(Ended() ? NextMessage<Message>() : source_->Next(pump_.now()))) {
      case Operation::kNone:
        return;
      case Operation::kWrite:
        this->StartWrite(&outgoing_);
        return;
      case Operation::kFinish:
        this->Finish(ToGrpc(*Ended()));
        return;
    }
  }
  bool Busy() {
    absl::MutexLock lock(&mutex_);
    return writing_ || finished_;
  }
  std::optional<absl::Status> Ended() {
    absl::MutexLock lock(&mutex_);
    return end_;
  }
  Operation Take(NextMessage<Message> next) {
    absl::MutexLock lock(&mutex_);
    if (next.end && !end_) end_ = next.end;
    if (next.message) {
      outgoing_ = *std::move(next.message);
      writing_ = true;
      return Operation::kWrite;
    }
    finished_ = end_.has_value();
    return finished_ ? Operation::kFinish : Operation::kNone;
  }

  StreamPump& pump_;
  const std::unique_ptr<MessageSource<Message>> source_;
  OneAtATime turns_;
  // gRPC's from the start of a write to its reaction.
  Message outgoing_;

  absl::Mutex mutex_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
