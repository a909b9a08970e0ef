// Answer: what is generated for one request, from the thread that computes to the one that sends.
// Used by generation_service.h and openai_server.cc. Any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.push_back(std::move(piece));
    changed_.notify_all();
  }
  void Fail(absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failed_.ok()) failed_ = std::move(status);
    changed_.notify_all();
  }
  bool abandoned() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return abandoned_;
  }

  // By who sends: the next piece, once there is one; why there will be none. Nothing where there
  // is none within the time.
  absl::StatusOr<std::optional<Piece>> Next(absl::Duration wait) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoMilliseconds(wait),
                      [this] { return !pieces_.empty() || !failed_.ok(); });
    if (pieces_.empty() && failed_.ok()) return std::nullopt;
    if (pieces_.empty()) return failed_;
    Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    return piece;
  }
  // Nobody wants the rest.
  void Abandon() {
    const std::lock_guard<std::mutex> lock(mutex_);
    abandoned_ = true;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  absl::Status failed_;
  bool abandoned_ = false;
};

}  // namespace espalier
