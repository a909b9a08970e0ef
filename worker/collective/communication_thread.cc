#include "worker/collective/communication_thread.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/catch_exceptions.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/collective/back_off.h"
#include "worker/collective/transport.h"

namespace espalier {
namespace {

// A poll that takes longer has most likely carried bytes.
constexpr absl::Duration kMovingPoll = absl::Microseconds(15);
// An idle rank wakes so often to let MPI deliver what it still holds.
constexpr absl::Duration kIdleNap = absl::Milliseconds(5);

}  // namespace

absl::StatusOr<CommunicationThread::World> CommunicationThread::Start() {
  thread_ = std::thread([self = shared_from_this()] { self->Main(); });
  absl::MutexLock lock(&mutex_);
  const auto started = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return started_; };
  if (!changed_.Wait(mutex_, options_.start_timeout, started)) {
    Fail(absl::DeadlineExceededError(
        absl::StrCat("MPI has not started within ", absl::FormatDuration(options_.start_timeout),
                     "; a rank has not come, or the ranks cannot reach each other over the ",
                     "networks '", options_.transport.networks, "'")));
  }
  if (!failure_.ok()) return failure_;
  return facts_;
}

int64_t CommunicationThread::Enqueue(const Operation& operation) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(operation);
  changed_.WakeAll();
  return ++enqueued_;
}

// The thread watches the peers; this watches the thread.
template <typename Over>
bool CommunicationThread::Await(const Over& over) {
  int64_t turns = turns_.load();
  while (!changed_.Wait(mutex_, 2 * options_.failure_timeout, over)) {
    if (turns_.load() == turns) {
      Fail(absl::DeadlineExceededError(
          absl::StrCat("one call of MPI has not returned for ",
                       absl::FormatDuration(2 * options_.failure_timeout))));
      return false;
    }
    turns = turns_.load();
  }
  return true;
}

absl::Status CommunicationThread::Wait(int64_t number) {
  absl::MutexLock lock(&mutex_);
  const auto over = [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return done_ >= number || !failure_.ok();
  };
  Await(over);
  return done_ >= number ? absl::OkStatus() : failure_;
}

// After a failure nothing is begun, and no call of MPI is made that could move what was under way.
absl::Status CommunicationThread::Quiesce() {
  absl::MutexLock lock(&mutex_);
  const auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !performing_ && (queue_.empty() || !failure_.ok());
  };
  return Await(quiet) ? absl::OkStatus() : failure_;
}

void CommunicationThread::Abort(absl::Status reason) {
  absl::MutexLock lock(&mutex_);
  Fail(std::move(reason));
}

void CommunicationThread::Fail(absl::Status reason) {
  if (failure_.ok()) failure_ = std::move(reason);
  changed_.WakeAll();
}

absl::Status CommunicationThread::Finish(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  finishing_ = true;
  changed_.WakeAll();
  if (!AwaitEnd(timeout)) {
    Fail(absl::DeadlineExceededError(absl::StrCat(
        "MPI has not ended within ", absl::FormatDuration(timeout), "; a rank may be gone")));
  }
  return failure_;
}

bool CommunicationThread::AwaitEnd(absl::Duration timeout) {
  return changed_.Wait(mutex_, timeout,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; });
}

void CommunicationThread::Stop() {
  bool ended = false;
  {
    absl::MutexLock lock(&mutex_);
    Fail(absl::CancelledError("the exchange is shutting down"));
    ended = AwaitEnd(options_.failure_timeout);
  }
  if (!thread_.joinable()) return;
  ended ? thread_.join() : thread_.detach();
}

CollectiveStats CommunicationThread::stats() const {
  absl::MutexLock lock(&mutex_);
  return {.completed = completed_.load(), .bytes_sent = bytes_sent_.load(), .arrivals = arrivals_};
}

absl::StatusOr<CommunicationThread::World> CommunicationThread::Begin() {
  SetMissingOpenMpiParameters(options_.transport);
  ASSIGN_OR_RETURN(world_, MpiWorld::Start());
  RETURN_IF_ERROR(
      VerifyTransport(*world_, {.settings = options_.transport, .ranks = options_.ranks}));
  World facts{.rank = world_->rank(), .size = world_->size()};
  ASSIGN_OR_RETURN(const std::string links, world_->Parameter("btl_tcp_links"));
  ESPALIER_CHECK(absl::SimpleAtoi(links, &facts.links), "the number of links is a number");
  messages_ = world_->NewMessages();
  beacon_ = std::make_unique<Beacon>(*world_,
                                     Beacon::Options{.failure_timeout = options_.failure_timeout,
                                                     .state = [this] { return State(); }},
                                     clock_);
  return facts;
}

PeerReport CommunicationThread::State() const {
  return {.work = options_.work ? options_.work() : 0, .operations = enqueued_.load()};
}

void CommunicationThread::Main() {
  const absl::StatusOr<World> facts = Begin();
  bool good = false;
  {
    absl::MutexLock lock(&mutex_);
    if (facts.ok()) facts_ = *facts;
    if (!facts.ok()) Fail(facts.status());
    good = failure_.ok();
    started_ = true;
    changed_.WakeAll();
  }
  if (good) {
    Serve();
    good = failure().ok();
  }
  if (good) {
    beacon_->Stop();
    world_->Finish();
  }
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  changed_.WakeAll();
}

absl::Status CommunicationThread::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

std::optional<Operation> CommunicationThread::Take() {
  absl::MutexLock lock(&mutex_);
  changed_.Wait(mutex_, kIdleNap,
                [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return HasWork(); });
  if (queue_.empty() || !failure_.ok()) return std::nullopt;
  Operation operation = queue_.front();
  queue_.pop_front();
  performing_ = true;
  return operation;
}

// Carries out operations until Finish or a failure.
void CommunicationThread::Serve() {
  while (true) {
    absl::Status status;
    if (const std::optional<Operation> operation = Take()) {
      status = CatchExceptions("the exchange", [&] { return Perform(*operation); });
    } else {
      world_->Progress();
      status = beacon_->Tick();
      ++turns_;
    }
    absl::MutexLock lock(&mutex_);
    performing_ = false;
    if (!status.ok()) Fail(std::move(status));
    done_ = completed_.load();
    changed_.WakeAll();
    if (!failure_.ok() || (queue_.empty() && finishing_)) return;
  }
}

absl::Status CommunicationThread::Perform(const Operation& operation) {
  Exchange exchange(*messages_, {.chunk_bytes = options_.chunk_bytes, .depth = options_.depth},
                    scratch_, operation, completed_.load() + 1);
  exchange.Start();
  messages_->TakeArrivals();
  RETURN_IF_ERROR(Drain(exchange));
  // Copies are no measure: their owner may have to wait for others.
  if (exchange.sums()) AddArrivals();
  bytes_sent_ += exchange.bytes_sent();
  ++completed_;
  return absl::OkStatus();
}

void CommunicationThread::AddArrivals() {
  const std::vector<Arrivals> now = messages_->TakeArrivals();
  absl::MutexLock lock(&mutex_);
  arrivals_.resize(now.size());
  for (size_t rank = 0; rank < now.size(); ++rank) {
    arrivals_[rank].bytes += now[rank].bytes;
    arrivals_[rank].seconds += now[rank].seconds;
  }
}

absl::Status CommunicationThread::CheckWait(absl::Duration moved_at, absl::Duration now) const {
  RETURN_IF_ERROR(beacon_->watch().CheckWait({.operation = completed_.load() + 1,
                                              .peers = messages_->PendingPeers(),
                                              .moved_at = moved_at},
                                             now));
  return failure();
}

// Polls until no message is in flight.
absl::Status CommunicationThread::Drain(const Exchange& exchange) {
  constexpr int kPollsPerCheck = 64;
  BackOff back_off;
  absl::Duration moved_at = clock_.Monotonic();
  for (int polls = 1; messages_->pending() > 0; ++polls) {
    const absl::Duration before = clock_.Monotonic();
    const absl::StatusOr<int> completed = messages_->Poll();
    RETURN_IF_ERROR(exchange.mismatch());
    RETURN_IF_ERROR(completed.status());
    RETURN_IF_ERROR(beacon_->Tick());
    ++turns_;
    const absl::Duration after = clock_.Monotonic();
    if (*completed > 0) moved_at = after;
    const absl::Duration pause =
        back_off.After(*completed > 0                 ? BackOff::Poll::kCompleted
                       : after - before > kMovingPoll ? BackOff::Poll::kMoved
                                                      : BackOff::Poll::kIdle);
    if (pause > absl::ZeroDuration() || polls % kPollsPerCheck == 0) {
      RETURN_IF_ERROR(CheckWait(moved_at, after));
    }
    if (pause > absl::ZeroDuration()) clock_.Sleep(pause);
  }
  return absl::OkStatus();
}

}  // namespace espalier
