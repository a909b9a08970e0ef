#include "worker/state/warm_in_place.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/memory/allocator.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// All tensors that share the memory have the new one from now on; returns the old one.
at::DataPtr Exchange(const torch::Tensor& tensor, at::DataPtr memory) {
  c10::Storage storage = tensor.storage();
  return storage.set_data_ptr(std::move(memory));
}

}  // namespace

WarmInPlace::Layout WarmInPlace::LayoutOf(Replica& replica) {
  Layout layout;
  layout.log = WarmSegment::Begin();
  int64_t end = layout.log + UndoLog::Bytes(replica.optimizer().blocks());
  Parameters& parameters = replica.parameters();
  std::vector<torch::Tensor> tensors = replica.Buffers();
  const std::vector<torch::Tensor>& gradient = parameters.summed_gradient().arenas();
  tensors.insert(tensors.end(), gradient.begin(), gradient.end());
  for (const torch::Tensor& tensor : tensors) {
    layout.arenas.push_back({tensor, end});
    end += WarmSegment::PageEnd(static_cast<int64_t>(tensor.nbytes()));
  }
  layout.ids = end;
  if (parameters.embedding() == EmbeddingGradient::kRowsApart) {
    const torch::Tensor table = parameters.Embedding().value;
    end += WarmSegment::PageEnd(table.size(0) * static_cast<int64_t>(sizeof(int64_t)));
    layout.rows = end;
    end += WarmSegment::PageEnd(static_cast<int64_t>(table.nbytes()));
  }
  layout.bytes = end;
  return layout;
}

WarmInPlace::WarmInPlace(Replica& replica, Layout layout, std::shared_ptr<WarmSegment> segment)
    : replica_(replica),
      layout_(std::move(layout)),
      segment_(std::move(segment)),
      log_(segment_->bytes().subspan(layout_.log), replica.optimizer().blocks()) {}

absl::StatusOr<std::unique_ptr<WarmInPlace>> WarmInPlace::Open(const WarmPlace& place,
                                                               const RunIdentity& identity,
                                                               Replica& replica) {
  const Layout layout = LayoutOf(replica);
  auto segment = WarmSegment::Open(place, WarmSegment::LayoutText(identity, layout.arenas, replica),
                                   layout.bytes, identity.computed_by);
  if (!segment.ok()) return WithoutWarmState(segment.status());
  std::unique_ptr<WarmInPlace> warm(new WarmInPlace(replica, layout, *std::move(segment)));
  if (const absl::Status moved = warm->MoveIn(); !moved.ok()) {
    RETURN_IF_ERROR(warm->MoveOut());
    // Also what was found: what cannot be taken would be waited for in vain.
    warm->segment_->Drop();
    return WithoutWarmState(moved);
  }
  replica.optimizer().set_undo_log(&warm->log_);
  if (const auto& left = warm->segment_->left()) {
    warm->number_ = left->number;
    warm->found_ = left->counters;
    warm->unfinished_ = left->kind == WarmSegment::kUpdating;
  }
  // Also so that its pages count before the first pass is measured.
  if (!warm->unfinished_) replica.parameters().summed_gradient().Zero();
  return warm;
}

WarmInPlace::~WarmInPlace() {
  if (replica_.optimizer().undo_log() == &log_) replica_.optimizer().set_undo_log(nullptr);
}

// The private memory is given back before the shared one is taken: there may not be room for both.
absl::Status WarmInPlace::MoveIn() {
  const int slots = std::min(at::get_num_threads(), UndoLog::kSlots);
  const int64_t blocks = replica_.optimizer().blocks();
  RETURN_IF_ERROR(segment_->Reserve(0, layout_.log + UndoLog::BytesUsed(blocks, slots)));
  for (const Arena& arena : layout_.arenas) {
    auto* owner = new std::shared_ptr<WarmSegment>(segment_);
    const auto release = [](void* of) { delete static_cast<std::shared_ptr<WarmSegment>*>(of); };
    Exchange(arena.tensor,
             at::DataPtr(segment_->At<std::byte>(arena.offset), owner, release, torch::kCPU));
  }
  ReleaseFreeMemory();
  if (segment_->left()) return absl::OkStatus();
  const int64_t begin = layout_.arenas.front().offset;
  return segment_->Reserve(begin, layout_.ids - begin);
}

absl::Status WarmInPlace::MoveOut() {
  return CatchTorch("allocating the replica outside of shared memory", [&] {
    for (const Arena& arena : layout_.arenas) {
      const torch::Tensor fresh = torch::zeros(arena.tensor.sizes(), arena.tensor.options());
      Exchange(arena.tensor, Exchange(fresh, at::DataPtr(nullptr, torch::kCPU)));
    }
  });
}

absl::Status WarmInPlace::TakeFound() {
  const TrainingCounters counters = *found_;
  if (unfinished_) {
    RETURN_IF_ERROR(
        CatchTorch("finishing the update of a step", [&] { FinishUpdate(*segment_->Read()); }));
  }
  replica_.counters() = counters;
  replica_.optimizer().set_updates(counters.updates);
  return CatchTorch("narrowing the weights", [&] { replica_.parameters().RefreshCopy(); });
}

void WarmInPlace::FinishUpdate(const WarmSegment::Record& record) {
  if (record.lookups > 0) {
    const int64_t* ids = segment_->At<int64_t>(layout_.ids);
    const int64_t width = replica_.parameters().Embedding().value.size(1);
    replica_.parameters().lookup_gradient() = {
        {ids, ids + record.lookups},
        torch::from_blob(segment_->At<float>(layout_.rows), {record.lookups, width},
                         torch::kFloat)};
  }
  replica_.optimizer().set_updates(record.counters.updates - 1);
  log_.Begin(record.number);
  replica_.optimizer().Redo(record.update);
  unfinished_ = false;
  Commit(record.counters);
}

// Their rows are private, and as many as there are ids in a step.
bool WarmInPlace::KeepLookups(const LookupGradient& lookups) {
  if (lookups.ids.empty()) return true;
  const torch::Tensor rows = lookups.rows.cpu().contiguous();
  const size_t ids_bytes = lookups.ids.size() * sizeof(int64_t);
  absl::Status room = segment_->Reserve(layout_.ids, static_cast<int64_t>(ids_bytes));
  if (room.ok()) room = segment_->Reserve(layout_.rows, static_cast<int64_t>(rows.nbytes()));
  if (!room.ok()) {
    if (!std::exchange(told_, true)) {
      LogWarning(
          absl::StrCat("the warm state does not survive a death in an update: ", room.message()));
    }
    return false;
  }
  std::memcpy(segment_->At<std::byte>(layout_.ids), lookups.ids.data(), ids_bytes);
  std::memcpy(segment_->At<std::byte>(layout_.rows), rows.data_ptr(), rows.nbytes());
  return true;
}

void WarmInPlace::Clear() {
  found_.reset();
  Write({.kind = WarmSegment::kEmpty});
  if (std::exchange(unfinished_, false)) replica_.parameters().summed_gradient().Zero();
}

void WarmInPlace::Begin(const TrainingCounters& after, const AdamW::Update& update) {
  const LookupGradient& lookups = replica_.parameters().lookup_gradient();
  const bool whole = KeepLookups(lookups);
  log_.Begin(++number_);
  Write({.kind = whole ? WarmSegment::kUpdating : WarmSegment::kEmpty,
         .counters = after,
         .update = update,
         .lookups = static_cast<int64_t>(lookups.ids.size())});
}

void WarmInPlace::Commit(const TrainingCounters& counters) {
  found_.reset();
  Write({.kind = WarmSegment::kClean, .counters = counters});
}

void WarmInPlace::set_at_store(void (*at_store)()) {
  segment_->at_store = at_store;
  log_.at_mark = at_store;
}

void WarmInPlace::Write(WarmSegment::Record record) {
  record.number = number_;
  segment_->Write(record);
}

}  // namespace espalier
