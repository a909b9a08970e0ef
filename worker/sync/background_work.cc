#include "worker/sync/background_work.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/catch_exceptions.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);
// What may have passed from one look to the next: macOS counts also what the machine slept
// meanwhile, in which nothing could move.
constexpr absl::Duration kMostOfALook = absl::Seconds(10);

}  // namespace

struct BackgroundWork::Shared {
  absl::Mutex mutex;
  SteadyCondition changed;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::Status result;  // written before `done`
};

BackgroundWork::BackgroundWork(std::function<absl::Status()> work, Clock& clock)
    : shared_(std::make_shared<Shared>()), clock_(clock), looked_at_(clock.Monotonic()) {
  thread_ = std::thread([shared = shared_, work = std::move(work)] {
    shared->result = CatchExceptions("work beside the others", work);
    absl::MutexLock lock(&shared->mutex);
    shared->done = true;
    shared->changed.WakeAll();
  });
}

void BackgroundWork::End(absl::Duration patience) {
  if (!thread_.joinable()) return;
  while (!WaitFor(kLook)) {
    if (Stalled() <= patience) continue;
    thread_.detach();
    return;
  }
  thread_.join();
}

BackgroundWork::~BackgroundWork() { End(absl::InfiniteDuration()); }

bool BackgroundWork::WaitFor(absl::Duration time) {
  absl::MutexLock lock(&shared_->mutex);
  return shared_->changed.Wait(
      shared_->mutex, time,
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) { return shared_->done; });
}

const absl::Status& BackgroundWork::result() const { return shared_->result; }

absl::Duration BackgroundWork::Stalled() {
  const absl::Duration now = clock_.Monotonic();
  const absl::StatusOr<absl::Duration> used = ReadThreadTime(thread_.native_handle());
  if (!used.ok() || *used != used_ || WaitFor(absl::ZeroDuration())) {
    used_ = used.value_or(used_);
    stalled_ = absl::ZeroDuration();
  } else {
    stalled_ += std::min(now - looked_at_, kMostOfALook);
  }
  looked_at_ = now;
  return stalled_;
}

}  // namespace espalier
