#include "worker/collective/in_process.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/collective/exchange.h"
#include "worker/collective/messages.h"

namespace espalier {
namespace {

struct Letter {
  int from;
  int tag;
  std::vector<std::byte> bytes;
  std::atomic<bool> taken{false};
};

// Where all ranks leave letters for each other, and the failure that ends them all.
class PostOffice {
 public:
  explicit PostOffice(int ranks) : ranks_(ranks), boxes_(ranks) {}
  int ranks() const { return ranks_; }

  void Post(int to, std::shared_ptr<Letter> letter) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    boxes_[to].push_back(std::move(letter));
    ++changes_;
    changed_.WakeAll();
  }

  // The oldest letter from that rank with that tag, which is taken; nothing when there is none.
  std::shared_ptr<Letter> Take(int to, int from, int tag) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::deque<std::shared_ptr<Letter>>& box = boxes_[to];
    const auto it = std::find_if(box.begin(), box.end(), [&](const auto& letter) {
      return letter->from == from && letter->tag == tag;
    });
    if (it == box.end()) return nullptr;
    std::shared_ptr<Letter> letter = std::move(*it);
    box.erase(it);
    letter->taken = true;
    ++changes_;
    changed_.WakeAll();
    return letter;
  }

  int64_t changes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return changes_;
  }
  // Waits until more has changed than `seen`. False: for so long nothing did.
  bool AwaitChange(int64_t seen, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto changed = [this, seen]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return changes_ > seen || !failure_.ok();
    };
    return changed_.Wait(mutex_, timeout, changed);
  }

  // The first reason stays; returns it.
  absl::Status Fail(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = std::move(reason);
    changed_.WakeAll();
    return failure_;
  }
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  const int ranks_;
  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  std::vector<std::deque<std::shared_ptr<Letter>>> boxes_ ABSL_GUARDED_BY(mutex_);  // by receiver
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

// Letters of one rank. A send is over when its letter is taken, as with large messages of MPI.
class Letters final : public Messages {
 public:
  Letters(int rank, PostOffice& office) : Messages(rank, office.ranks()), office_(office) {}

  void Send(absl::Span<const std::byte> bytes, int peer, int tag, Done done) override {
    auto letter = std::make_shared<Letter>();
    letter->from = rank();
    letter->tag = tag;
    letter->bytes.assign(bytes.begin(), bytes.end());
    sends_.push_back({letter, peer, std::move(done)});
    office_.Post(peer, std::move(letter));
  }
  void Receive(absl::Span<std::byte> bytes, int peer, int tag, Done done) override {
    receives_.push_back({bytes, peer, tag, std::move(done)});
  }

  absl::StatusOr<int> Poll() override {
    RETURN_IF_ERROR(office_.failure());
    std::vector<Done> done;
    for (SendInFlight& send : std::exchange(sends_, {})) {
      if (send.letter->taken) {
        done.push_back(std::move(send.done));
      } else {
        sends_.push_back(std::move(send));
      }
    }
    absl::Status status;
    for (ReceiveInFlight& receive : std::exchange(receives_, {})) {
      const std::shared_ptr<Letter> letter = office_.Take(rank(), receive.peer, receive.tag);
      if (letter == nullptr) {
        receives_.push_back(std::move(receive));
      } else if (letter->bytes.size() > receive.bytes.size()) {
        status = TooLong(*letter, receive.bytes.size());
      } else {
        std::copy(letter->bytes.begin(), letter->bytes.end(), receive.bytes.begin());
        done.push_back(std::move(receive.done));
      }
    }
    for (const Done& callback : done) callback();
    RETURN_IF_ERROR(status);
    return static_cast<int>(done.size());
  }

  int64_t pending() const override {
    return static_cast<int64_t>(sends_.size() + receives_.size());
  }
  std::set<int> PendingPeers() const override {
    std::set<int> peers;
    for (const SendInFlight& send : sends_) peers.insert(send.peer);
    for (const ReceiveInFlight& receive : receives_) peers.insert(receive.peer);
    return peers;
  }

 private:
  struct SendInFlight {
    std::shared_ptr<Letter> letter;
    int peer;
    Done done;
  };
  struct ReceiveInFlight {
    absl::Span<std::byte> bytes;
    int peer;
    int tag;
    Done done;
  };
  static absl::Status TooLong(const Letter& letter, size_t expected) {
    return absl::UnavailableError(absl::StrCat("a message of ", letter.bytes.size(),
                                               " bytes has come from rank ", letter.from, " where ",
                                               expected, " were expected"));
  }

  PostOffice& office_;
  std::vector<SendInFlight> sends_;
  std::vector<ReceiveInFlight> receives_;
};

class InProcess final : public Collective {
 public:
  InProcess(int rank, std::shared_ptr<PostOffice> office, absl::Duration failure_timeout,
            const ExchangeOptions& options)
      : office_(std::move(office)),
        failure_timeout_(failure_timeout),
        options_(options),
        letters_(rank, *office_) {}

  Rank rank() const override { return Rank(letters_.rank()); }
  int world_size() const override { return letters_.size(); }

  Ticket Start(const Operation& operation) override {
    waiting_.push_back(operation);
    return Ticket(++started_);
  }

  absl::Status Wait(Ticket ticket) override {
    while (completed_ < ticket.value()) {
      const absl::Status status = Perform(waiting_.front());
      if (!status.ok()) return office_->Fail(status);
      waiting_.pop_front();
    }
    return absl::OkStatus();
  }
  absl::Status Quiesce() override {
    (void)Wait(Ticket(started_));
    return absl::OkStatus();
  }
  void Abort(absl::Status reason) override { (void)office_->Fail(std::move(reason)); }

  CollectiveStats stats() const override {
    return {.completed = completed_.load(), .bytes_sent = bytes_sent_.load()};
  }

 private:
  absl::Status Perform(const Operation& operation) {
    RETURN_IF_ERROR(office_->failure());
    Exchange exchange(letters_, options_, scratch_, operation, completed_ + 1);
    exchange.Start();
    while (letters_.pending() > 0) {
      const int64_t seen = office_->changes();
      const absl::StatusOr<int> completed = letters_.Poll();
      RETURN_IF_ERROR(exchange.mismatch());
      RETURN_IF_ERROR(completed.status());
      if (*completed > 0 || office_->AwaitChange(seen, failure_timeout_)) continue;
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", letters_.rank(), " waited ", absl::FormatDuration(failure_timeout_),
                       " in exchange operation ", completed_ + 1, " for messages of the ranks ",
                       absl::StrJoin(letters_.PendingPeers(), ", ")));
    }
    bytes_sent_ += exchange.bytes_sent();
    ++completed_;
    return absl::OkStatus();
  }

  const std::shared_ptr<PostOffice> office_;
  const absl::Duration failure_timeout_;
  const ExchangeOptions options_;
  Letters letters_;
  ScratchMemory scratch_;
  std::deque<Operation> waiting_;
  int64_t started_ = 0;
  std::atomic<int64_t> completed_{0};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace

std::vector<std::unique_ptr<Collective>> InProcessGroup(int ranks, absl::Duration failure_timeout,
                                                        const ExchangeOptions& options) {
  const auto office = std::make_shared<PostOffice>(ranks);
  std::vector<std::unique_ptr<Collective>> group;
  for (int rank = 0; rank < ranks; ++rank) {
    group.push_back(std::make_unique<InProcess>(rank, office, failure_timeout, options));
  }
  return group;
}

}  // namespace espalier
