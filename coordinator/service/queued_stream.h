// QueuedStream: the server's end of a stream that writes messages from a short queue, in order.
// Used by agent_stream.h only, for the streams of agents and of mpirun's remote-shell agents.
// Thread-safe. What to do next is decided under the lock and done without it, by one thread at a
// time, so that nothing follows Finish.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/call.h"
#include "coordinator/service/one_at_a_time.h"

namespace espalier {

template <typename Reactor, typename Outgoing>
class QueuedStream : public Reactor,
                     public std::enable_shared_from_this<QueuedStream<Reactor, Outgoing>> {
 public:
  // `forget` is called once, last: it drops the owner's pointer.
  explicit QueuedStream(std::function<void()> forget) : forget_(std::move(forget)) {}

  void Send(Outgoing message) {
    Put(std::move(message));
    Act();
  }
  // Send in two steps, for an order that is decided under a lock of the caller's: Put may be called
  // under it; Act, which is to follow, may not, because it may run reactions.
  void Put(Outgoing message) {
    absl::MutexLock lock(&mutex_);
    if (queue_.size() >= kQueueMax) {
      queue_.clear();
      if (!close_) close_ = absl::ResourceExhaustedError("the other side does not read");
    } else if (!close_) {
      queue_.push_back(std::move(message));
    }
  }
  void Act() {
    const auto self = this->shared_from_this();  // the end may forget this object
    operations_.Run([this] {
      for (;;) {
        switch (Next()) {
          case Operation::kNone:
            return;
          case Operation::kRead:
            Read();
            break;
          case Operation::kWrite:
            this->StartWrite(&outgoing_);
            break;
          case Operation::kFinish:
            this->Finish(ToGrpc(CloseStatus()));
            return;
        }
      }
    });
  }
  // After what was sent before.
  void Close(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (!close_) close_ = status;
    }
    Act();
  }

  bool closing() {
    absl::MutexLock lock(&mutex_);
    return close_.has_value();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (ok) return Act();
    Drop(absl::UnavailableError("the stream is broken"));
  }
  void OnCancel() override { Drop(absl::CancelledError("the other side has gone")); }
  void OnDone() override {
    const std::function<void()> forget = forget_;  // the call ends this object
    forget();
  }

 protected:
  // Starts the one read that is due.
  virtual void Read() {}
  void ReadOn() {
    {
      absl::MutexLock lock(&mutex_);
      read_wanted_ = true;
    }
    Act();
  }

 private:
  static constexpr size_t kQueueMax = 256;
  enum class Operation { kNone, kRead, kWrite, kFinish };

  Operation Next() {
    absl::MutexLock lock(&mutex_);
    if (finished_) return Operation::kNone;
    if (std::exchange(read_wanted_, false)) return Operation::kRead;
    if (writing_) return Operation::kNone;
    if (!queue_.empty()) {
      outgoing_ = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      return Operation::kWrite;
    }
    finished_ = close_.has_value();
    return finished_ ? Operation::kFinish : Operation::kNone;
  }
  absl::Status CloseStatus() {
    absl::MutexLock lock(&mutex_);
    return *close_;
  }
  void Drop(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      queue_.clear();
    }
    Close(status);
  }

  const std::function<void()> forget_;
  OneAtATime operations_;
  // gRPC's from the start of a write to its reaction.
  Outgoing outgoing_;

  absl::Mutex mutex_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> close_ ABSL_GUARDED_BY(mutex_);
  bool read_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
