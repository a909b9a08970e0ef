// OneAtATime: any thread may ask for a piece of work, and one thread at a time does it. Used by
// attach_stream.h and pumped_writer.h, whose operations must not overtake each other (none may
// follow Finish), but must not be started under a lock either, because gRPC may run a reaction
// inside the very call that starts an operation. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace espalier {

class OneAtATime {
 public:
  // Runs `work` until nobody has asked again meanwhile. While another thread, or a caller further
  // up in this one, is running it, only asks. The owner must stay alive until this returns.
  template <typename Work>
  void Run(const Work& work) {
    if (!Begin()) return;
    do {
      work();
    } while (AskedAgain());
  }

 private:
  bool Begin() {
    absl::MutexLock lock(&mutex_);
    asked_ = true;
    if (running_) return false;
    running_ = true;
    asked_ = false;
    return true;
  }
  bool AskedAgain() {
    absl::MutexLock lock(&mutex_);
    running_ = asked_;
    asked_ = false;
    return running_;
  }

  absl::Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace espalier
