#include "worker/state/warm_state.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/memory/allocator.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr int64_t kPage = 16384;  // of every system

enum Kind : uint64_t { kEmpty, kClean, kUpdating };

int64_t PageEnd(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::unique_ptr<WarmState> Without(const absl::Status& why) {
  LogWarning(absl::StrCat(
      "no warm state: the steps of a worker that is killed are computed again from the last "
      "checkpoint on, since ",
      why.message()));
  return nullptr;
}

// All tensors that share the memory have the new one from now on; returns the old one.
at::DataPtr Exchange(const torch::Tensor& tensor, at::DataPtr memory) {
  c10::Storage storage = tensor.storage();
  return storage.set_data_ptr(std::move(memory));
}

}  // namespace

// Plain words, without gaps.
struct WarmState::Record {
  uint64_t kind = kEmpty;
  uint64_t number = 0;  // of the newest update that was begun
  TrainingCounters counters;
  AdamW::Update update;
  int64_t lookups = 0;
  uint64_t check = 0;

  uint64_t Check() const {
    uint64_t hash = 0;
    for (size_t at = 0; at < offsetof(Record, check); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, reinterpret_cast<const std::byte*>(this) + at, sizeof(word));
      hash = MixBits(hash ^ word) + 0x9e3779b97f4a7c15ULL;
    }
    return hash;
  }
};

// The record of an even sequence number lies in the first place; the number is stored last.
struct WarmState::Header {
  std::atomic<uint64_t> sequence;
  Record records[2];
};

WarmState::Layout WarmState::LayoutOf(Replica& replica) {
  Layout layout;
  layout.log = PageEnd(sizeof(Header));
  int64_t end = layout.log + UndoLog::Bytes(replica.optimizer().blocks());
  Parameters& parameters = replica.parameters();
  std::vector<torch::Tensor> tensors = replica.Buffers();
  const std::vector<torch::Tensor>& gradient = parameters.summed_gradient().arenas();
  tensors.insert(tensors.end(), gradient.begin(), gradient.end());
  for (const torch::Tensor& tensor : tensors) {
    layout.arenas.push_back({tensor, end});
    end += PageEnd(static_cast<int64_t>(tensor.nbytes()));
  }
  layout.ids = end;
  if (parameters.embedding() == EmbeddingGradient::kRowsApart) {
    const torch::Tensor table = parameters.Get(kEmbeddingName);
    end += PageEnd(table.size(0) * static_cast<int64_t>(sizeof(int64_t)));
    layout.rows = end;
    end += PageEnd(static_cast<int64_t>(table.nbytes()));
  }
  layout.bytes = end;
  return layout;
}

// What must be equal for the bytes to mean the same, and for the order of samples to go on.
std::string WarmState::LayoutText(const RunIdentity& identity, const Layout& layout,
                                  Replica& replica) {
  const v1::JobSpec& spec = identity.spec;
  std::string text = absl::StrCat(
      "warm state 3\n", ESPALIER_VERSION, "\n", identity.data_hash, "\n", identity.training_samples,
      "\n", spec.data().sequence_length(), "\n", spec.data().seed(), "\n",
      spec.train().global_batch(), "\n", static_cast<int>(spec.train().precision()), "\n",
      spec.train().optimizer().SerializeAsString(), "\n", identity.architecture, "\n");
  if (replica.has_frozen()) {
    absl::StrAppend(&text, spec.model().from(), "\n", spec.train().seed(), "\n");
  }
  for (const Parameter& parameter : replica.parameters().trained()) {
    absl::StrAppend(&text, parameter.shape.name, " ", absl::StrJoin(parameter.shape.shape, "x"),
                    "\n");
  }
  for (const Arena& arena : layout.arenas) {
    absl::StrAppend(&text, torch::toString(arena.tensor.scalar_type()), " ", arena.offset, "\n");
  }
  return Sha256Hex(text);
}

WarmState::WarmState(Place place, Replica& replica, Layout layout,
                     std::shared_ptr<SharedSegment> segment)
    : place_(std::move(place)),
      replica_(replica),
      layout_(std::move(layout)),
      segment_(std::move(segment)),
      log_(segment_->bytes().subspan(layout_.log), replica.optimizer().blocks()) {}

absl::StatusOr<std::unique_ptr<WarmState>> WarmState::Open(const Place& place,
                                                           const RunIdentity& identity,
                                                           Replica& replica) {
  const Layout layout = LayoutOf(replica);
  const SegmentRecord record{.job = place.job,
                             .node = place.node,
                             .worker = place.worker,
                             .history = place.history,
                             .generation = place.generation,
                             .layout = LayoutText(identity, layout, replica),
                             .bytes = layout.bytes};
  std::unique_ptr<WarmState> warm;
  std::optional<Record> left;
  // A second time for memory that is zeroed, where what was left is of no use.
  for (const bool first : {true, false}) {
    warm.reset();
    auto segment = SharedSegment::Open(place.registry, record);
    if (!segment.ok()) return Without(segment.status());
    warm.reset(new WarmState(place, replica, layout, *std::move(segment)));
    if (!warm->segment_->found()) break;
    left = warm->Read();
    if (left && left->kind != kEmpty && left->counters.step > 0) break;
    left.reset();
    if (first) warm->segment_->Remove();
  }
  if (const absl::Status moved = warm->MoveIn(); !moved.ok()) {
    RETURN_IF_ERROR(warm->MoveOut());
    // Also what was found: what cannot be taken would be waited for in vain.
    warm->segment_->Remove();
    return Without(moved);
  }
  replica.optimizer().set_undo_log(&warm->log_);
  if (left) {
    warm->number_ = left->number;
    warm->found_ = left->counters;
    warm->unfinished_ = left->kind == kUpdating;
  }
  // Also so that its pages count before the first pass is measured.
  if (!warm->unfinished_) replica.parameters().summed_gradient().Zero();
  return warm;
}

WarmState::~WarmState() {
  if (replica_.optimizer().undo_log() == &log_) replica_.optimizer().set_undo_log(nullptr);
}

// The private memory is given back before the shared one is taken: there may not be room for both.
absl::Status WarmState::MoveIn() {
  const int slots = std::min(at::get_num_threads(), UndoLog::kSlots);
  const int64_t blocks = replica_.optimizer().blocks();
  RETURN_IF_ERROR(segment_->Reserve(0, layout_.log + UndoLog::BytesUsed(blocks, slots)));
  for (const Arena& arena : layout_.arenas) {
    auto* owner = new std::shared_ptr<SharedSegment>(segment_);
    const auto release = [](void* of) { delete static_cast<std::shared_ptr<SharedSegment>*>(of); };
    Exchange(arena.tensor, at::DataPtr(At<std::byte>(arena.offset), owner, release, torch::kCPU));
  }
  ReleaseFreeMemory();
  if (segment_->found()) return absl::OkStatus();
  const int64_t begin = layout_.arenas.front().offset;
  return segment_->Reserve(begin, layout_.ids - begin);
}

absl::Status WarmState::MoveOut() {
  return CatchTorch("allocating the replica outside of shared memory", [&] {
    for (const Arena& arena : layout_.arenas) {
      const torch::Tensor fresh = torch::zeros(arena.tensor.sizes(), arena.tensor.options());
      Exchange(arena.tensor, Exchange(fresh, at::DataPtr(nullptr, torch::kCPU)));
    }
  });
}

absl::Status WarmState::TakeFound() {
  const TrainingCounters counters = *found_;
  if (unfinished_) {
    RETURN_IF_ERROR(CatchTorch("finishing the update of a step", [&] { FinishUpdate(*Read()); }));
  }
  replica_.counters() = counters;
  replica_.optimizer().set_updates(counters.updates);
  return CatchTorch("narrowing the weights", [&] { replica_.parameters().RefreshCopy(); });
}

void WarmState::FinishUpdate(const Record& record) {
  if (record.lookups > 0) {
    const int64_t* ids = At<int64_t>(layout_.ids);
    const int64_t width = replica_.parameters().Get(kEmbeddingName).size(1);
    replica_.parameters().lookup_gradient() = {
        {ids, ids + record.lookups},
        torch::from_blob(At<float>(layout_.rows), {record.lookups, width}, torch::kFloat)};
  }
  replica_.optimizer().set_updates(record.counters.updates - 1);
  log_.Begin(record.number);
  replica_.optimizer().Redo(record.update);
  unfinished_ = false;
  Commit(record.counters);
}

// Their rows are private, and as many as there are ids in a step.
bool WarmState::KeepLookups(const LookupGradient& lookups) {
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
  std::memcpy(At<std::byte>(layout_.ids), lookups.ids.data(), ids_bytes);
  std::memcpy(At<std::byte>(layout_.rows), rows.data_ptr(), rows.nbytes());
  return true;
}

void WarmState::Clear() {
  found_.reset();
  Write({.kind = kEmpty});
  if (std::exchange(unfinished_, false)) replica_.parameters().summed_gradient().Zero();
}

void WarmState::Begin(const TrainingCounters& after, const AdamW::Update& update) {
  const LookupGradient& lookups = replica_.parameters().lookup_gradient();
  const bool whole = KeepLookups(lookups);
  log_.Begin(++number_);
  Write({.kind = whole ? kUpdating : kEmpty,
         .counters = after,
         .update = update,
         .lookups = static_cast<int64_t>(lookups.ids.size())});
}

void WarmState::Commit(const TrainingCounters& counters) {
  found_.reset();
  Write({.kind = kClean, .counters = counters});
}

void WarmState::Remove() {
  segment_->Remove();
  const auto others = ListSegments(place_.registry, place_.node);
  if (!others.ok()) return;
  for (const RegisteredSegment& other : *others) {
    if (other.record.job == place_.job) RemoveSegment(place_.registry, other.name);
  }
}

void WarmState::set_at_store(void (*at_store)()) {
  at_store_ = at_store;
  log_.at_mark = at_store;
}

// Absent: nothing was ever written, or it is damaged.
std::optional<WarmState::Record> WarmState::Read() const {
  const Header& header = *At<Header>(0);
  const uint64_t sequence = header.sequence.load();
  const Record record = header.records[sequence % 2];
  if (sequence == 0 || record.check != record.Check()) return std::nullopt;
  return record;
}

void WarmState::Write(Record record) {
  static_assert(std::is_trivially_copyable_v<Record> &&
                std::has_unique_object_representations_v<TrainingCounters> &&
                sizeof(Record) % sizeof(uint64_t) == 0);
  record.number = number_;
  record.check = record.Check();
  Header& header = *At<Header>(0);
  const uint64_t next = header.sequence.load() + 1;
  header.records[next % 2] = record;
  if (at_store_ != nullptr) at_store_();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header.sequence.store(next, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  segment_->set_mark(record.kind == kEmpty ? 0 : record.counters.step);
  if (at_store_ != nullptr) at_store_();
}

}  // namespace espalier
