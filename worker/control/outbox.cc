#include "worker/control/outbox.h"

#include <algorithm>

namespace espalier {
namespace {

// The seconds in it would count twice.
bool CountsOnce(const v1::AttachRequest& message) {
  return message.body_case() == v1::AttachRequest::kStep ||
         message.body_case() == v1::AttachRequest::kPractised;
}

}  // namespace

void Outbox::Add(v1::AttachRequest message) {
  const int kind = message.body_case();
  if (CountsOnce(message)) {
    if (steps_waiting_ == steps_max_) {
      waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), CountsOnce));
      --steps_waiting_;
      ++dropped_steps_;
    }
    ++steps_waiting_;
  } else {
    kept_[kind] = message;
    // An older one of the kind says nothing that the newer does not.
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                  [kind](const v1::AttachRequest& waiting) {
                                    return waiting.body_case() == kind;
                                  }),
                   waiting_.end());
  }
  waiting_.push_back(std::move(message));
}

std::optional<v1::AttachRequest> Outbox::Take() {
  if (waiting_.empty()) return std::nullopt;
  v1::AttachRequest message = std::move(waiting_.front());
  waiting_.pop_front();
  if (CountsOnce(message)) --steps_waiting_;
  return message;
}

void Outbox::Reconnected() {
  std::deque<v1::AttachRequest> again;
  // Field order is the order of a worker's life: ready first, finished last.
  for (const auto& [kind, message] : kept_) {
    if (kind < v1::AttachRequest::kStep) again.push_back(message);
  }
  // What was found at the start counts only for a rank that is not ready.
  const auto found = kept_.find(v1::AttachRequest::kFound);
  if (found != kept_.end()) again.push_back(found->second);
  for (v1::AttachRequest& message : waiting_) {
    if (CountsOnce(message)) again.push_back(std::move(message));
  }
  for (const auto& [kind, message] : kept_) {
    const bool later = kind > v1::AttachRequest::kStep && kind != v1::AttachRequest::kFound;
    if (later) again.push_back(message);
  }
  waiting_ = std::move(again);
}

}  // namespace espalier
