// Answer: what is generated for one request, from the thread that computes to the one that sends.
// Used by generation_service.h and openai_server.cc. Any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/generation/batch_generator.h"

namespace espalier {

class Answer {
 public:
  struct Piece {
    int64_t choice = 0;
    std::string text;
    std::optional<SequenceEnd> end;  // the choice's last piece
    int64_t tokens = 0;              // of the choice, where it is its last
  };

  // By who computes. As many pieces are held as the request has tokens, at most.
  void Push(Piece piece) {
    const absl::MutexLock lock(&mutex_);
    pieces_.push_back(std::move(piece));
    changed_.WakeAll();
  }
  void Fail(absl::Status status) {
    const absl::MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = std::move(status);
    changed_.WakeAll();
  }
  bool abandoned() const {
    const absl::MutexLock lock(&mutex_);
    return abandoned_;
  }

  // By who sends: the next piece, once there is one; why there will be none. Nothing where there
  // is none within the time.
  absl::StatusOr<std::optional<Piece>> Next(absl::Duration wait) {
    const absl::MutexLock lock(&mutex_);
    changed_.Wait(mutex_, wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !pieces_.empty() || !failed_.ok();
    });
    if (pieces_.empty() && failed_.ok()) return std::nullopt;
    if (pieces_.empty()) return failed_;
    Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    return piece;
  }
  // Nobody wants the rest.
  void Abandon() {
    const absl::MutexLock lock(&mutex_);
    abandoned_ = true;
  }

 private:
  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
