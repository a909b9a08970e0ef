#include "tests/worker/mac/mac_queue.h"

#include <utility>

namespace espalier {

void MacQueue::CopyToHost(torch::Tensor from, const torch::Tensor& to) {
  const std::lock_guard lock(mutex_);
  copies_.push_back({std::move(from), to});
}

void MacQueue::CopyToDevice(const torch::Tensor& from, const torch::Tensor& to) {
  const std::lock_guard lock(mutex_);
  copies_.push_back({from, to, /*up=*/true});
}

void MacQueue::Do(Copy& copy) {
  if (!std::exchange(copy.done, true)) copy.to.copy_(copy.from);
  copy.from.reset();
  copy.to.reset();
}

int64_t MacQueue::Mark() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(copies_.size());
}

bool MacQueue::Reached(int64_t mark) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(reached_) < mark) Do(copies_.at(reached_++));
  return static_cast<int64_t>(reached_) >= mark;
}

void MacQueue::DoAll() {
  const std::lock_guard lock(mutex_);
  while (reached_ < copies_.size()) Do(copies_[reached_++]);
}

std::vector<std::string> MacQueue::DoUploads() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> wrong;
  for (size_t i = reached_; i < copies_.size(); ++i) {
    Copy& copy = copies_[i];
    if (!copy.up || copy.done) continue;
    if (copy.from.use_count() == 1 && copy.from.storage().use_count() == 1) {
      wrong.emplace_back(
          "memory of the host was given up before the device had read it: other numbers come there "
          "then (#139550, #189690)");
    }
    Do(copy);
  }
  return wrong;
}

void MacQueue::Clear() {
  const std::lock_guard lock(mutex_);
  copies_.clear();
  reached_ = 0;
}

}  // namespace espalier
