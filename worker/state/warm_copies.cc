#include "worker/state/warm_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/state/warm_in_place.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr int64_t kPieceBytes = 32 << 20;

// One after the other, from `begin` on.
std::vector<WarmSegment::Arena> Laid(const std::vector<torch::Tensor>& tensors, int64_t& begin) {
  std::vector<WarmSegment::Arena> slot;
  for (const torch::Tensor& tensor : tensors) {
    slot.push_back({tensor, begin});
    begin += WarmSegment::PageEnd(static_cast<int64_t>(tensor.nbytes()));
  }
  return slot;
}

}  // namespace

WarmCopies::WarmCopies(Replica& replica, std::vector<Slot> slots,
                       std::shared_ptr<WarmSegment> segment, Clock& clock)
    : replica_(replica),
      slots_(std::move(slots)),
      segment_(std::move(segment)),
      clock_(clock),
      transfers_(replica.parameters().device()) {
  if (const auto& left = segment_->left()) {
    number_ = left->number;
    found_ = left->counters;
  }
}

absl::StatusOr<std::unique_ptr<WarmCopies>> WarmCopies::Open(const WarmPlace& place,
                                                             const RunIdentity& identity,
                                                             Replica& replica, Clock& clock) {
  int64_t end = WarmSegment::Begin();
  const std::vector<torch::Tensor> tensors = replica.Buffers();
  std::vector<Slot> slots = {Laid(tensors, end), Laid(tensors, end)};
  Slot all = slots[0];
  all.insert(all.end(), slots[1].begin(), slots[1].end());
  auto segment = WarmSegment::Open(place, WarmSegment::LayoutText(identity, all, replica), end,
                                   identity.computed_by);
  if (!segment.ok()) return WithoutWarmState(segment.status());
  if (const absl::Status room = (*segment)->Reserve(0, end); !room.ok()) {
    (*segment)->Drop();
    return WithoutWarmState(room);
  }
  std::unique_ptr<WarmCopies> warm(
      new WarmCopies(replica, std::move(slots), *std::move(segment), clock));
  RETURN_IF_ERROR(CatchTorch("allocating host memory for copies of what is trained", [&] {
    const auto options = torch::TensorOptions()
                             .dtype(torch::kByte)
                             .pinned_memory(replica.parameters().device().is_cuda());
    for (int i = 0; i < 2; ++i) warm->staging_.push_back(torch::empty({kPieceBytes}, options));
  }));
  return warm;
}

WarmCopies::~WarmCopies() { Await(); }

absl::Status WarmCopies::TakeFound() {
  const TrainingCounters counters = *found_;
  RETURN_IF_ERROR(CatchTorch("copying what was found in shared memory", [&] {
    for (const WarmSegment::Arena& arena : slots_[number_ % 2]) {
      arena.tensor.copy_(torch::from_blob(segment_->At<std::byte>(arena.offset),
                                          arena.tensor.sizes(), arena.tensor.scalar_type()));
    }
    replica_.parameters().RefreshCopy();
  }));
  replica_.counters() = counters;
  replica_.optimizer().set_updates(counters.updates);
  return absl::OkStatus();
}

void WarmCopies::Clear() {
  Await();
  found_.reset();
  not_copied_.reset();
  segment_->Write({.kind = WarmSegment::kEmpty, .number = number_});
}

void WarmCopies::Begin(const TrainingCounters&, const AdamW::Update&) {
  if (copying_) {
    const absl::Duration before = clock_.Monotonic();
    Await();
    next_at_ = begun_ + kShareOfTime * (clock_.Monotonic() - before);
  }
  not_copied_.reset();
}

void WarmCopies::Commit(const TrainingCounters& counters) {
  Await();
  found_.reset();
  not_copied_ = counters;
  if (clock_.Monotonic() >= next_at_) Start(counters);
}

void WarmCopies::Finish() {
  Await();
  if (!not_copied_) return;
  Start(*not_copied_);
  Await();
}

void WarmCopies::Remove() {
  Await();
  segment_->Remove();
}

// A device that fails fails here too, while the run ends for another reason.
void WarmCopies::Start(const TrainingCounters& counters) {
  if (failed_) return;
  const auto copy = [this, counters] {
    RETURN_IF_ERROR(CopyInto(slots_[(number_ + 1) % 2]));
    segment_->Write({.kind = WarmSegment::kClean, .number = ++number_, .counters = counters});
    not_copied_.reset();
    return absl::OkStatus();
  };
  GiveUpAfter(CatchTorch("beginning to copy what is trained", [&] {
    begun_ = clock_.Monotonic();
    transfers_.Follow();
    copying_.emplace(copy, clock_);
  }));
}

// While a piece goes from its staging memory to the shared one, the next one comes from the device.
absl::Status WarmCopies::CopyInto(const Slot& slot) {
  struct Piece {
    Transfers::Copy copy;
    const void* from;
    std::byte* to;
    size_t bytes;
  };
  std::optional<Piece> under_way;
  const auto land = [&] {
    if (!under_way) return;
    under_way->copy.Wait();
    if (segment_->at_store != nullptr) segment_->at_store();
    std::memcpy(under_way->to, under_way->from, under_way->bytes);
  };
  size_t next = 0;  // staging memory
  return CatchTorch("copying what is trained into shared memory", [&] {
    for (const WarmSegment::Arena& arena : slot) {
      const torch::Tensor flat = arena.tensor.detach().view({-1});
      const auto size = static_cast<int64_t>(flat.element_size());
      const int64_t step = kPieceBytes / size;
      for (int64_t begin = 0; begin < flat.numel(); begin += step) {
        const torch::Tensor piece = flat.narrow(0, begin, std::min(step, flat.numel() - begin));
        const torch::Tensor place =
            staging_[next].narrow(0, 0, static_cast<int64_t>(piece.nbytes()));
        next = 1 - next;
        Transfers::Copy copy = transfers_.ToHostInTurn(piece, place.view(piece.scalar_type()));
        land();
        under_way = {std::move(copy), place.data_ptr(),
                     segment_->At<std::byte>(arena.offset + begin * size), piece.nbytes()};
      }
    }
    land();
  });
}

void WarmCopies::Await() {
  if (!copying_) return;
  copying_->WaitFor(absl::InfiniteDuration());
  const absl::Status result = copying_->result();
  copying_.reset();
  GiveUpAfter(result);
}

void WarmCopies::GiveUpAfter(const absl::Status& copied) {
  if (copied.ok()) return;
  failed_ = true;
  LogWarning(
      absl::StrCat("what is trained is not kept in shared memory any more: ", copied.message()));
}

absl::StatusOr<std::unique_ptr<WarmState>> OpenWarmState(const WarmPlace& place,
                                                         const RunIdentity& identity,
                                                         Replica& replica) {
  if (replica.parameters().flat().is_cpu()) return WarmInPlace::Open(place, identity, replica);
  return WarmCopies::Open(place, identity, replica, RealClock());
}

}  // namespace espalier
