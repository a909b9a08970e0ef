#include "coordinator/service/tally.h"

#include <algorithm>

namespace espalier {

absl::string_view AccountName(Account account) {
  switch (account) {
    case Account::kCompute:
      return "compute";
    case Account::kExchangeWait:
      return "exchange_wait";
    case Account::kDataWait:
      return "data_wait";
    case Account::kCheckpoint:
      return "checkpoint";
    case Account::kPaused:
      return "paused";
    case Account::kRecovering:
      return "recovering";
    case Account::kIdle:
      return "idle";
  }
  return "";
}

void WorkerTally::Book(Account account, double seconds) {
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
  const auto book = [&](Account account, double seconds) {
    Book(account, seconds);
    slack_ -= std::max(0.0, seconds);
  };
  book(Account::kCompute, step.compute_seconds() + step.update_seconds() + step.evaluate_seconds());
  book(Account::kExchangeWait, step.exchange_wait_seconds());
  book(Account::kDataWait, step.data_wait_seconds());
  book(Account::kCheckpoint, step.checkpoint_seconds());
  book(Account::kPaused, step.paused_seconds());
  exchange_bytes_ += std::max<int64_t>(0, step.exchange_bytes());
  if (clock_ == Clock::kRecovering) {
    book(Account::kRecovering, slack_ - before);
    clock_ = Clock::kRunning;
  }
  const double most = absl::ToDoubleSeconds(kSlack);
  if (slack_ > most) book(Account::kIdle, slack_ - most);
}

void WorkerTally::Lost(absl::Duration now) {
  if (clock_ != Clock::kRunning) return;
  slack_ += Elapsed(now);
  Book(Account::kRecovering, slack_);
  slack_ = std::min(0.0, slack_);
  clock_ = Clock::kRecovering;
}

void WorkerTally::Stopped(absl::Duration now) {
  if (clock_ == Clock::kStopped) return;
  slack_ += Elapsed(now);
  Book(clock_ == Clock::kRecovering ? Account::kRecovering : Account::kIdle, slack_);
  slack_ = 0;
  clock_ = Clock::kStopped;
}

}  // namespace espalier
