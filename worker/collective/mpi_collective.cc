#include "worker/collective/mpi_collective.h"

#include <atomic>
#include <cstdlib>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/collective/exchange.h"
#include "worker/collective/mpi_world.h"

namespace espalier {
namespace {

// For a hand-typed mpirun: what it did not say is set as the job wants it.
void SetMissingParameters(const OpenMpiSettings& settings) {
  for (const OpenMpiParameter& parameter : TransportParameters(settings)) {
    setenv(OpenMpiVariable(parameter.name).c_str(), parameter.value.c_str(), /*overwrite=*/0);
  }
}

absl::Status Verify(const MpiWorld& world, const MpiOptions& options) {
  if (options.ranks != 0 && world.size() != options.ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("the MPI world has ", world.size(), " ranks where ", options.ranks,
                     " were launched; check that mpirun and the worker use the same Open MPI (",
                     MpiWorld::LibraryVersion(), ")"));
  }
  for (const OpenMpiParameter& wanted : TransportParameters(options.transport)) {
    // Open MPI replaces the networks by the names of the interfaces that it found on them, and
    // refuses to start when there is none.
    if (wanted.name == "btl_tcp_if_include") continue;
    ASSIGN_OR_RETURN(const std::string value, world.Parameter(wanted.name));
    if (value == wanted.value) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "Open MPI has ", wanted.name, " = '", value, "' where the job asks for '", wanted.value,
        "'; leave the parameter out of the mpirun command and of the environment (",
        OpenMpiVariable(wanted.name), "), or change the job's parallel section"));
  }
  return absl::OkStatus();
}

struct Operation {
  enum class Kind { kAllReduce, kBroadcast, kAllGather };
  Kind kind;
  absl::Span<float> values = {};
  absl::Span<std::byte> bytes = {};
  absl::Span<const std::byte> input = {};
  int root = 0;
};

// Pauses between polls: none while messages move, then longer and longer.
class BackOff {
 public:
  explicit BackOff(Clock& clock) : clock_(clock), moved_at_(clock.Monotonic()) {}
  void Moved() {
    idle_polls_ = 0;
    moved_at_ = clock_.Monotonic();
  }
  absl::Duration idle() const { return clock_.Monotonic() - moved_at_; }
  void Pause() {
    constexpr int kBusyPolls = 200;
    if (++idle_polls_ < kBusyPolls) return;
    const int doublings = std::min((idle_polls_ - kBusyPolls) / 20, 6);
    clock_.Sleep(absl::Microseconds(16 << doublings));  // up to 1 ms
  }

 private:
  Clock& clock_;
  absl::Duration moved_at_;
  int idle_polls_ = 0;
};

class MpiCollectiveImpl final : public MpiCollective {
 public:
  MpiCollectiveImpl(const MpiOptions& options, Clock& clock) : options_(options), clock_(clock) {}
  ~MpiCollectiveImpl() override {
    Abort(absl::CancelledError("the exchange is shutting down"));
    if (thread_.joinable()) thread_.join();
  }

  // Starts the communication thread and waits until MPI is up.
  absl::Status Run() {
    thread_ = std::thread([this] { CommunicationThread(); });
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&started_));
    return failure_;
  }

  Rank rank() const override { return Rank(rank_); }
  int world_size() const override { return size_; }
  int links() const override { return links_; }

  Ticket StartAllReduce(absl::Span<float> values) override {
    return Enqueue({.kind = Operation::Kind::kAllReduce, .values = values});
  }
  absl::Status Wait(Ticket ticket) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto over = [this, ticket]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return done_ >= ticket.value() || !failure_.ok();
    };
    mutex_.Await(absl::Condition(&over));
    return done_ >= ticket.value() ? absl::OkStatus() : failure_;
  }
  absl::Status Broadcast(absl::Span<std::byte> bytes, Rank root) override {
    return Wait(Enqueue({.kind = Operation::Kind::kBroadcast,
                         .bytes = bytes,
                         .root = static_cast<int>(root.value())}));
  }
  absl::Status AllGather(absl::Span<const std::byte> mine, absl::Span<std::byte> all) override {
    ESPALIER_CHECK(all.size() == mine.size() * size_, "the sizes do not fit");
    return Wait(Enqueue({.kind = Operation::Kind::kAllGather, .bytes = all, .input = mine}));
  }
  void Abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = std::move(reason);
  }
  CollectiveStats stats() const override {
    return {.completed = completed_.load(), .bytes_sent = bytes_sent_.load()};
  }
  void Finish() override ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      finish_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  Ticket Enqueue(Operation operation) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(operation);
    return Ticket(++enqueued_);
  }

  absl::Status Begin() {
    SetMissingParameters(options_.transport);
    ASSIGN_OR_RETURN(world_, MpiWorld::Start());
    rank_ = world_->rank();
    size_ = world_->size();
    RETURN_IF_ERROR(Verify(*world_, options_));
    ASSIGN_OR_RETURN(const std::string links, world_->Parameter("btl_tcp_links"));
    ESPALIER_CHECK(absl::SimpleAtoi(links, &links_), "the number of links is a number");
    return absl::OkStatus();
  }

  void CommunicationThread() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status status = Begin();
    {
      absl::MutexLock lock(&mutex_);
      if (failure_.ok()) failure_ = status;
      started_ = true;
    }
    while (status.ok()) {
      Operation operation;
      {
        absl::MutexLock lock(&mutex_);
        const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return !queue_.empty() || !failure_.ok() || finish_;
        };
        mutex_.Await(absl::Condition(&work));
        if (!failure_.ok()) return;
        if (queue_.empty()) break;
        operation = queue_.front();
        queue_.pop_front();
      }
      status = Perform(operation);
      absl::MutexLock lock(&mutex_);
      if (failure_.ok()) failure_ = status;
      if (status.ok()) ++done_;
    }
    if (status.ok()) world_->Finish();
  }

  absl::Status Perform(const Operation& operation) {
    const ExchangeOptions exchange{.chunk_bytes = options_.chunk_bytes, .depth = options_.depth};
    int64_t sent = 0;
    switch (operation.kind) {
      case Operation::Kind::kAllReduce: {
        AllReduce all_reduce(*world_, exchange, operation.values);
        all_reduce.Start();
        RETURN_IF_ERROR(Drain());
        sent = all_reduce.bytes_sent();
        break;
      }
      case Operation::Kind::kBroadcast:
        sent = StartBroadcast(*world_, exchange, operation.bytes, operation.root);
        RETURN_IF_ERROR(Drain());
        break;
      case Operation::Kind::kAllGather:
        sent = StartAllGather(*world_, exchange, operation.input, operation.bytes);
        RETURN_IF_ERROR(Drain());
        break;
    }
    bytes_sent_ += sent;
    ++completed_;
    return absl::OkStatus();
  }

  // Polls until no message is pending.
  absl::Status Drain() ABSL_LOCKS_EXCLUDED(mutex_) {
    BackOff back_off(clock_);
    while (world_->pending() > 0) {
      ASSIGN_OR_RETURN(const int moved, world_->Poll());
      if (moved > 0) {
        back_off.Moved();
        continue;
      }
      back_off.Pause();
      if (back_off.idle() > options_.failure_timeout) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank ", rank_, " waited ", absl::FormatDuration(options_.failure_timeout),
            " for rank ", world_->PendingPeers(), " in the exchange, and nothing moved"));
      }
      absl::MutexLock lock(&mutex_);
      if (!failure_.ok()) return failure_;
    }
    return absl::OkStatus();
  }

  const MpiOptions options_;
  Clock& clock_;
  std::thread thread_;
  // Written by the communication thread before started_.
  std::unique_ptr<MpiWorld> world_;
  int rank_ = 0;
  int size_ = 1;
  int links_ = 0;

  mutable absl::Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> completed_{0};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<MpiCollective>> MpiCollective::Start(const MpiOptions& options,
                                                                    Clock& clock) {
  auto collective = std::make_unique<MpiCollectiveImpl>(options, clock);
  RETURN_IF_ERROR(collective->Run());
  return collective;
}

}  // namespace espalier
