#include "worker/data/prefetch.h"

#include <utility>

#include "common/base/catch_exceptions.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace espalier {

PrefetchedSamples::PrefetchedSamples(std::shared_ptr<const SampleTable> table, SampleOrder order,
                                     Options options)
    : table_(std::move(table)), order_(order), options_(options) {
  ESPALIER_CHECK(options_.depth_steps >= 1 && options_.threads >= 1,
                 "prefetching needs a step of depth and a thread");
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
}

PrefetchedSamples::~PrefetchedSamples() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

// Keeps exactly the slots of steps [first, first + depth].
void PrefetchedSamples::Plan(Step first) {
  const Step end(first.value() + options_.depth_steps + 1);
  slots_.erase(slots_.begin(), slots_.lower_bound(first));
  slots_.erase(slots_.lower_bound(end), slots_.end());
  for (Step step = first; step < end; step = step.next()) {
    std::shared_ptr<Slot>& slot = slots_[step];
    if (slot == nullptr) slot = std::make_shared<Slot>();
  }
}

bool PrefetchedSamples::HasWork() const {
  if (stopping_) return true;
  for (const auto& [step, slot] : slots_) {
    if (!slot->claimed) return true;
  }
  return false;
}

PrefetchedSamples::Result PrefetchedSamples::ReadAhead(Step step, SlotRange range) const {
  Result result;
  const absl::Status read = CatchExceptions("reading samples", [&]() -> absl::Status {
    ASSIGN_OR_RETURN(Samples samples, table_->Read(order_.SamplesOfStep(step, range)));
    result = std::make_shared<const Samples>(std::move(samples));
    return absl::OkStatus();
  });
  if (!read.ok()) return read;
  return result;
}

void PrefetchedSamples::Work() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &PrefetchedSamples::HasWork));
    if (stopping_) return;
    for (const auto& [step, slot] : slots_) {
      if (slot->claimed) continue;
      slot->claimed = true;
      const std::shared_ptr<Slot> held = slot;
      const Step wanted = step;
      const SlotRange range = range_;
      mutex_.Unlock();
      Result result = ReadAhead(wanted, range);
      mutex_.Lock();
      held->result = std::move(result);
      held->done = true;
      break;  // the map may have changed meanwhile
    }
  }
}

absl::StatusOr<std::shared_ptr<const Samples>> PrefetchedSamples::Fetch(Step step,
                                                                        SlotRange range) {
  absl::MutexLock lock(&mutex_);
  if (!(range == range_)) slots_.clear();
  range_ = range;
  Plan(step);
  const std::shared_ptr<Slot> slot = slots_[step];
  mutex_.Await(absl::Condition(&slot->done));
  Result result = slot->result;
  slots_.erase(step);
  return result;
}

int64_t PrefetchedSamples::held() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(slots_.size());
}

}  // namespace espalier
