#include "coordinator/loop/inbox.h"

#include <iterator>
#include <utility>

namespace espalier {
bool Inbox::Put(Input input) {
  const absl::Duration now = RealClock().Monotonic();
  {
    absl::MutexLock lock(&mutex_);
    const bool is_call = std::holds_alternative<OperatorCall>(input);
    if (closed_ || (is_call && calls_ >= options_.calls_max)) {
      ++rejected_;
      return false;
    }
    if (is_call) ++calls_;
    waiting_.push_back(std::move(input));
    came_.push_back(now);
  }
  arrived_.WakeAll();
  return true;
}

std::vector<Input> Inbox::Take(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  arrived_.Wait(mutex_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || woken_ || !waiting_.empty();
  });
  woken_ = false;
  calls_ = 0;
  std::vector<Input> taken(std::make_move_iterator(waiting_.begin()),
                           std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  taken_came_.swap(came_);
  came_.clear();
  return taken;
}

std::vector<absl::Duration> Inbox::AgesOfTaken() const {
  const absl::Duration now = RealClock().Monotonic();
  std::vector<absl::Duration> ages;
  for (const absl::Duration came : taken_came_) ages.push_back(now - came);
  return ages;
}

void Inbox::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  arrived_.WakeAll();
}

void Inbox::Wake() {
  {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
  }
  arrived_.WakeAll();
}

size_t Inbox::depth() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

int64_t Inbox::rejected() const {
  absl::MutexLock lock(&mutex_);
  return rejected_;
}

}  // namespace espalier
