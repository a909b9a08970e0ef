#include "worker/collective/in_process.h"

#include <atomic>
#include <cstring>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/collective/partition.h"
#include "worker/collective/wire.h"

namespace espalier {
namespace {

// What one rank offers for the operation at hand.
struct Offer {
  float* values = nullptr;
  const std::byte* input = nullptr;
  size_t bytes = 0;
};

// A meeting point of all ranks, which none leaves before all have come.
class Meeting {
 public:
  Meeting(int ranks, absl::Duration timeout) : offers_(ranks), timeout_(timeout) {}

  int ranks() const { return static_cast<int>(offers_.size()); }
  // Written by its rank before a Meet, read by the others after it.
  Offer& offer(int rank) { return offers_[rank]; }

  absl::Status Meet() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    const int64_t round = round_;
    if (++present_ == ranks()) {
      present_ = 0;
      ++round_;
      return absl::OkStatus();
    }
    const auto over = [this, round]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return round_ != round || !failure_.ok();
    };
    const bool in_time = mutex_.AwaitWithTimeout(absl::Condition(&over), timeout_);
    if (round_ != round) return absl::OkStatus();
    if (in_time) return failure_;
    failure_ = absl::DeadlineExceededError(absl::StrCat(
        "only ", present_, " of ", ranks(), " ranks came within ", absl::FormatDuration(timeout_)));
    return failure_;
  }

  void Abort(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = std::move(reason);
  }

 private:
  std::vector<Offer> offers_;
  const absl::Duration timeout_;
  absl::Mutex mutex_;
  int present_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

class InProcess final : public Collective {
 public:
  InProcess(int rank, std::shared_ptr<Meeting> meeting)
      : rank_(rank), meeting_(std::move(meeting)) {}

  Rank rank() const override { return Rank(rank_); }
  int world_size() const override { return meeting_->ranks(); }

  Ticket StartAllReduce(const Reduction& reduction) override {
    waiting_.push_back(reduction);
    return Ticket(++started_);
  }

  absl::Status Wait(Ticket ticket) override {
    while (started_ - static_cast<int64_t>(waiting_.size()) < ticket.value()) {
      RETURN_IF_ERROR(AllReduce(waiting_.front()));
      waiting_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(absl::Span<std::byte> bytes, Rank root) override {
    meeting_->offer(rank_) = {.values = nullptr, .input = bytes.data(), .bytes = bytes.size()};
    RETURN_IF_ERROR(meeting_->Meet());
    const Offer& source = meeting_->offer(static_cast<int>(root.value()));
    ESPALIER_CHECK(source.bytes == bytes.size(), "ranks broadcast different sizes");
    if (root.value() != rank_ && !bytes.empty()) {
      std::memcpy(bytes.data(), source.input, bytes.size());
    }
    return Done(root.value() == rank_ ? (world_size() - 1) * bytes.size() : 0);
  }

  absl::Status AllGather(absl::Span<const std::byte> mine, absl::Span<std::byte> all) override {
    ESPALIER_CHECK(all.size() == mine.size() * world_size(), "the sizes do not fit");
    meeting_->offer(rank_) = {.values = nullptr, .input = mine.data(), .bytes = mine.size()};
    RETURN_IF_ERROR(meeting_->Meet());
    for (int r = 0; r < world_size() && !mine.empty(); ++r) {
      std::memcpy(all.data() + r * mine.size(), meeting_->offer(r).input, mine.size());
    }
    return Done((world_size() - 1) * mine.size());
  }

  void Abort(absl::Status reason) override { meeting_->Abort(std::move(reason)); }

  CollectiveStats stats() const override {
    return {.completed = completed_.load(), .bytes_sent = bytes_sent_.load()};
  }

 private:
  absl::Status AllReduce(const Reduction& reduction) {
    const absl::Span<float> values = reduction.values;
    const WireType wire = reduction.wire;
    const int ranks = world_size();
    if (ranks == 1) AddResidual(values, reduction.residual);
    for (int r = 0; r < ranks; ++r) {
      if (r != rank_) Encode(reduction, r);
    }
    meeting_->offer(rank_) = {
        .values = values.data(), .input = nullptr, .bytes = values.size() * sizeof(float)};
    RETURN_IF_ERROR(meeting_->Meet());
    const Range mine = PieceOf(values.size(), rank_, ranks);
    std::vector<WirePart> parts;
    for (int r = 0; r < ranks; ++r) {
      ESPALIER_CHECK(meeting_->offer(r).bytes == values.size() * sizeof(float),
                     "ranks reduce different sizes");
      const float* part = meeting_->offer(r).values + mine.begin;
      parts.push_back({reinterpret_cast<const std::byte*>(part), r != rank_});
    }
    SumInRankOrder(wire, parts, values.data() + mine.begin, mine.size());
    if (ranks > 1) Encode(reduction, rank_);
    RETURN_IF_ERROR(meeting_->Meet());
    int64_t sent = 0;
    for (int r = 0; r < ranks; ++r) {
      const Range piece = PieceOf(values.size(), r, ranks);
      const int64_t bytes = WireBytes(wire, piece.size());
      sent += r == rank_ ? (ranks - 1) * bytes : bytes;
      if (r == rank_ || piece.size() == 0) continue;
      std::memcpy(values.data() + piece.begin, meeting_->offer(r).values + piece.begin, bytes);
      DecodeInPlace(wire, values.subspan(piece.begin, piece.size()));
    }
    RETURN_IF_ERROR(Done(sent));
    if (ranks > 1) DecodeInPlace(wire, values.subspan(mine.begin, mine.size()));
    return absl::OkStatus();
  }

  void Encode(const Reduction& reduction, int piece_of) {
    const Range piece = PieceOf(reduction.values.size(), piece_of, world_size());
    EncodeInPlace(reduction.wire, reduction.values.subspan(piece.begin, piece.size()),
                  reduction.residual.empty()
                      ? absl::Span<float>()
                      : reduction.residual.subspan(piece.begin, piece.size()));
  }

  // No rank may reuse its memory before all have read it.
  absl::Status Done(int64_t bytes) {
    RETURN_IF_ERROR(meeting_->Meet());
    ++completed_;
    bytes_sent_ += bytes;
    return absl::OkStatus();
  }

  const int rank_;
  const std::shared_ptr<Meeting> meeting_;
  std::deque<Reduction> waiting_;
  int64_t started_ = 0;
  std::atomic<int64_t> completed_{0};
  std::atomic<int64_t> bytes_sent_{0};
};

}  // namespace

std::vector<std::unique_ptr<Collective>> InProcessGroup(int ranks, absl::Duration failure_timeout) {
  const auto meeting = std::make_shared<Meeting>(ranks, failure_timeout);
  std::vector<std::unique_ptr<Collective>> group;
  for (int r = 0; r < ranks; ++r) group.push_back(std::make_unique<InProcess>(r, meeting));
  return group;
}

}  // namespace espalier
