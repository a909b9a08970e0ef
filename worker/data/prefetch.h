// PrefetchedSamples: a SampleSource that reads the next steps ahead, on threads of its own, into a
// bounded buffer. What it returns does not depend on the number of threads or on timing. Used by
// worker/session.cc. One thread calls Fetch.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/samples.h"

namespace espalier {

class PrefetchedSamples : public SampleSource {
 public:
  struct Options {
    int depth_steps = 2;  // steps held or being read beyond the one returned last, at least 1
    int threads = 1;      // at least 1
  };
  PrefetchedSamples(std::shared_ptr<const SampleTable> table, SampleOrder order, Options options);
  ~PrefetchedSamples() override;  // joins the threads; a read in progress is finished

  absl::StatusOr<std::shared_ptr<const Samples>> Fetch(Step step, SlotRange range) override;

  // Steps held now; for tests.
  int64_t held() const;

 private:
  using Result = absl::StatusOr<std::shared_ptr<const Samples>>;
  struct Slot {
    bool claimed = false;
    bool done = false;
    Result result = absl::UnknownError("not read yet");
  };
  void Work();
  Result ReadAhead(Step step, SlotRange range) const;
  void Plan(Step first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const SampleTable> table_;
  const SampleOrder order_;
  const Options options_;
  mutable absl::Mutex mutex_;
  SlotRange range_ ABSL_GUARDED_BY(mutex_);
  // Shared with the reader of the slot, so that a change of plan can drop it.
  std::map<Step, std::shared_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
