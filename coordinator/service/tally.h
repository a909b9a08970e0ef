// WorkerTally: running totals of one rank for the metrics. Its account books every second of the
// worker's wall time to exactly one of compute, exchange_wait, data_wait, rollout, reward,
// checkpoint, paused, recovering and idle; the sum equals the wall time but for the time since the
// last report and at most kSlack. Used by side_notes.h and view.h; decides nothing, is not
// journaled. Thread rule: plain value.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

enum class GoodputAccount {
  // Forward, backward, update, evaluation.
  kCompute,
  // Waiting for the gradients of others.
  kExchangeWait,
  // Waiting for the prefetcher.
  kDataWait,
  // Sampling completions, and having them judged.
  kRollout,
  kReward,
  // Writing a checkpoint.
  kCheckpoint,
  // Soft pause.
  kPaused,
  // From the loss of a generation to the first step of the next one, or to its launch where that
  // has no such rank.
  kRecovering,
  // Everything else: starting, waiting at a boundary.
  kIdle,
};
inline constexpr int kGoodputAccountCount = 9;
absl::string_view GoodputAccountName(GoodputAccount account);

class WorkerTally {
 public:
  static constexpr absl::Duration kSlack = absl::Seconds(1);

  // The rank's process has attached. Times are monotonic.
  void Started(absl::Duration now);
  void Reported(const v1::StepReport& step, absl::Duration now);
  // The generation was lost; the time until the next report is recovery.
  void Lost(absl::Duration now);
  // The generation ended as wanted; no time passes until the next start.
  void Stopped(absl::Duration now);

  double seconds(GoodputAccount account) const { return seconds_[static_cast<size_t>(account)]; }
  int64_t exchange_bytes() const { return exchange_bytes_; }

 private:
  enum class Clock {
    // No process: time does not count.
    kStopped,
    // Between reports of a running worker.
    kRunning,
    // Lost, not yet back.
    kRecovering,
  };
  void Book(GoodputAccount account, double seconds);
  // Seconds since the last call, which restarts the measure.
  double Elapsed(absl::Duration now);

  Clock clock_ = Clock::kStopped;
  absl::Duration last_;
  // Wall time not booked yet (or booked too early, when negative): a report travels, so it never
  // covers exactly the time since the last one.
  double slack_ = 0;
  std::array<double, kGoodputAccountCount> seconds_ = {};
  int64_t exchange_bytes_ = 0;
};

}  // namespace espalier
