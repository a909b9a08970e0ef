// BackgroundWork: work that may take long, on a thread of its own, watched from outside. A thread
// that uses no processor hangs in the system: a disk, a network share or a driver that does not
// answer. Used by together.h, worker/rollout/rollout_engine.cc and worker/state:
// checkpoint_beside.h and warm_copies.h. Belongs to the thread that made it.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace espalier {

class BackgroundWork {
 public:
  // Starts. What the work throws becomes its status.
  BackgroundWork(std::function<absl::Status()> work, Clock& clock);
  // Waits for the work, unless it has hung for longer than `patience`: then its thread is left
  // behind, and with it what the work refers to. The process must end soon after.
  void End(absl::Duration patience);
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // Whether it is done, within that time.
  bool WaitFor(absl::Duration time);
  // Of work that is done.
  const absl::Status& result() const;
  // For how long its thread has used no processor, as far as was looked, which should be done every
  // few seconds; what the machine sleeps does not count. Nothing when it is done.
  absl::Duration Stalled();

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
  Clock& clock_;
  std::thread thread_;
  absl::Duration used_;
  absl::Duration looked_at_, stalled_;
};

}  // namespace espalier
