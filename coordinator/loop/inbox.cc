#include "coordinator/loop/inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace espalier {
namespace {

// The end of a longer wait would lie beyond what the clock can say.
constexpr absl::Duration kLongestWait = absl::Hours(24);

}  // namespace

bool Inbox::Put(Input input) {
  {
    std::lock_guard lock(mutex_);
    const bool is_call = std::holds_alternative<OperatorCall>(input);
    if (closed_ || (is_call && calls_ >= options_.calls_max)) {
      ++rejected_;
      return false;
    }
    if (is_call) ++calls_;
    waiting_.push_back(std::move(input));
  }
  arrived_.notify_one();
  return true;
}

std::vector<Input> Inbox::Take(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, absl::ToChronoNanoseconds(std::min(timeout, kLongestWait)),
                    [&] { return closed_ || woken_ || !waiting_.empty(); });
  woken_ = false;
  calls_ = 0;
  std::vector<Input> taken(std::make_move_iterator(waiting_.begin()),
                           std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  return taken;
}

void Inbox::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  arrived_.notify_all();
}

void Inbox::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  arrived_.notify_all();
}

size_t Inbox::depth() const {
  std::lock_guard lock(mutex_);
  return waiting_.size();
}

int64_t Inbox::rejected() const {
  std::lock_guard lock(mutex_);
  return rejected_;
}

}  // namespace espalier
