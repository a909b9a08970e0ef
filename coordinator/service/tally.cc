#include "coordinator/service/tally.h"

#include <algorithm>

namespace espalier {

absl::string_view GoodputAccountName(GoodputAccount account) {
  switch (account) {
    case GoodputAccount::kCompute:
      return "compute";
    case GoodputAccount::kExchangeWait:
      return "exchange_wait";
    case GoodputAccount::kDataWait:
      return "data_wait";
    case GoodputAccount::kRollout:
      return "rollout";
    case GoodputAccount::kReward:
      return "reward";
    case GoodputAccount::kCheckpoint:
      return "checkpoint";
    case GoodputAccount::kPaused:
      return "paused";
    case GoodputAccount::kRecovering:
      return "recovering";
    case GoodputAccount::kIdle:
      return "idle";
  }
  return "";
}

void WorkerTally::Book(GoodputAccount account, double seconds) {
  seconds_[static_cast<size_t>(account)] += std::max(0.0, seconds);
}

double WorkerTally::Elapsed(absl::Duration now) {
  const double elapsed = absl::ToDoubleSeconds(now - last_);
  last_ = now;
  return std::max(0.0, elapsed);
}

void WorkerTally::Started(absl::Duration now) {
  if (clock_ != Clock::kStopped)
    return;  // recovery ends with a report, re-attaching changes nothing
  clock_ = Clock::kRunning;
  last_ = now;
  slack_ = 0;
}

void WorkerTally::Reported(const v1::StepReport& step, absl::Duration now) {
  if (clock_ == Clock::kStopped) Started(now);
  const double before = slack_;
  slack_ += Elapsed(now);
  const auto book = [&](GoodputAccount account, double seconds) {
    Book(account, seconds);
    slack_ -= std::max(0.0, seconds);
  };
  book(GoodputAccount::kCompute,
       step.compute_seconds() + step.update_seconds() + step.evaluate_seconds());
  book(GoodputAccount::kExchangeWait, step.exchange_wait_seconds());
  book(GoodputAccount::kDataWait, step.data_wait_seconds());
  book(GoodputAccount::kRollout, step.rollout_seconds());
  book(GoodputAccount::kReward, step.reward_seconds());
  book(GoodputAccount::kCheckpoint, step.checkpoint_seconds());
  book(GoodputAccount::kPaused, step.paused_seconds());
  exchange_bytes_ += std::max<int64_t>(0, step.exchange_bytes());
  if (clock_ == Clock::kRecovering) {
    book(GoodputAccount::kRecovering, slack_ - before);
    clock_ = Clock::kRunning;
  }
  const double most = absl::ToDoubleSeconds(kSlack);
  if (slack_ > most) book(GoodputAccount::kIdle, slack_ - most);
}

void WorkerTally::Lost(absl::Duration now) {
  if (clock_ != Clock::kRunning) return;
  slack_ += Elapsed(now);
  Book(GoodputAccount::kRecovering, slack_);
  slack_ = std::min(0.0, slack_);
  clock_ = Clock::kRecovering;
}

void WorkerTally::Stopped(absl::Duration now) {
  if (clock_ == Clock::kStopped) return;
  slack_ += Elapsed(now);
  Book(clock_ == Clock::kRecovering ? GoodputAccount::kRecovering : GoodputAccount::kIdle, slack_);
  slack_ = 0;
  clock_ = Clock::kStopped;
}

}  // namespace espalier
