// BoundedQueue: hands values from threads to threads, never more than `capacity` at a time. Used
// where a producer must not run ahead of a consumer without bound. Thread-safe.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace espalier {

// What became of a value that was offered.
enum class PushResult {
  kPushed,
  kTimedOut,  // the queue stayed full
  kClosed,    // nobody will take it any more
};

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {
    ESPALIER_CHECK(capacity > 0, "a queue needs room for one value");
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Waits for room at most `timeout` (zero: not at all). The value is moved from only when pushed.
  PushResult Push(T&& value, absl::Duration timeout) {
    const absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &BoundedQueue::CanPush), timeout);
    if (closed_) return PushResult::kClosed;
    if (values_.size() >= capacity_) return PushResult::kTimedOut;
    values_.push_back(std::move(value));
    return PushResult::kPushed;
  }

  // The oldest value; waits for one at most `timeout`. Nothing when there was none in time, or when
  // the queue is closed and empty (finished() tells the two apart).
  std::optional<T> Pop(absl::Duration timeout) {
    const absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &BoundedQueue::CanPop), timeout);
    if (values_.empty()) return std::nullopt;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }

  // Refuses further values and ends the waits; those inside can still be popped.
  void Close() {
    const absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  // Closed, and every value has been popped.
  bool finished() const {
    const absl::MutexLock lock(&mutex_);
    return closed_ && values_.empty();
  }

  size_t size() const {
    const absl::MutexLock lock(&mutex_);
    return values_.size();
  }

 private:
  bool CanPush() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || values_.size() < capacity_;
  }
  bool CanPop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !values_.empty(); }

  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<T> values_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
