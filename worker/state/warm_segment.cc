#include "worker/state/warm_segment.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

constexpr int64_t kPage = 16384;  // of every system

uint64_t CheckOf(const WarmSegment::Record& record) {
  uint64_t hash = 0;
  for (size_t at = 0; at < offsetof(WarmSegment::Record, check); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(&record) + at, sizeof(word));
    hash = MixBits(hash ^ word) + 0x9e3779b97f4a7c15ULL;
  }
  return hash;
}

}  // namespace

// The record of an even sequence number lies in the first place; the number is stored last.
struct WarmSegment::Header {
  std::atomic<uint64_t> sequence;
  Record records[2];
};

int64_t WarmSegment::PageEnd(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

int64_t WarmSegment::Begin() { return PageEnd(sizeof(Header)); }

std::string WarmSegment::LayoutText(const RunIdentity& identity, const std::vector<Arena>& arenas,
                                    Replica& replica) {
  const v1::JobSpec& spec = identity.spec;
  std::string text = absl::StrCat(
      "warm state 7\n", ESPALIER_VERSION, "\n", identity.data_hash, "\n", identity.training_samples,
      "\n", spec.data().sequence_length(), "\n", spec.data().seed(), "\n",
      spec.data().group_by_length(), "\n", spec.data().packing(), "\n", spec.train().has_epochs(),
      "\n", spec.train().global_batch(), "\n", static_cast<int>(spec.train().precision()), "\n",
      spec.train().optimizer().SerializeAsString(), "\n", identity.architecture, "\n");
  if (replica.has_frozen()) {
    absl::StrAppend(&text, spec.model().from(), "\n", spec.train().seed(), "\n");
    const auto& lora = replica.parameters().lora();
    if (lora) absl::StrAppend(&text, "lora ", lora->scale(), "\n");
  }
  for (const Parameter& parameter : replica.parameters().trained()) {
    absl::StrAppend(&text, parameter.shape.name, " ", absl::StrJoin(parameter.shape.shape, "x"),
                    "\n");
  }
  for (const Arena& arena : arenas) {
    absl::StrAppend(&text, torch::toString(arena.tensor.scalar_type()), " ", arena.offset, "\n");
  }
  return Sha256Hex(text);
}

WarmSegment::WarmSegment(WarmPlace place, std::unique_ptr<SharedSegment> segment,
                         const std::string& computed_by)
    : place_(std::move(place)), segment_(std::move(segment)) {
  std::copy_n(computed_by.begin(), std::min(computed_by.size(), computed_by_.size() - 1),
              computed_by_.begin());
}

absl::StatusOr<std::shared_ptr<WarmSegment>> WarmSegment::Open(const WarmPlace& place,
                                                               const std::string& layout,
                                                               int64_t bytes,
                                                               const std::string& computed_by) {
  const SegmentRecord record{.job = place.job,
                             .node = place.node,
                             .worker = place.worker,
                             .history = place.history,
                             .generation = place.generation,
                             .layout = layout,
                             .bytes = bytes};
  // A second time for memory that is zeroed, where what was left is of no use.
  for (bool first = true;; first = false) {
    ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment,
                     SharedSegment::Open(place.registry, record));
    std::shared_ptr<WarmSegment> warm(new WarmSegment(place, std::move(segment), computed_by));
    if (!warm->segment_->found()) return warm;
    warm->left_ = warm->Read();
    if (warm->left_ && warm->left_->kind != kEmpty && warm->left_->counters.step > 0) return warm;
    warm->left_.reset();
    if (!first) return warm;
    warm->segment_->Remove();
  }
}

std::optional<WarmSegment::Record> WarmSegment::Read() const {
  const Header& header = *At<Header>(0);
  const uint64_t sequence = header.sequence.load();
  const Record record = header.records[sequence % 2];
  if (sequence == 0 || record.check != CheckOf(record)) return std::nullopt;
  return record;
}

void WarmSegment::Write(Record record) {
  static_assert(std::is_trivially_copyable_v<Record> &&
                std::has_unique_object_representations_v<TrainingCounters> &&
                sizeof(Record) % sizeof(uint64_t) == 0);
  record.computed_by = computed_by_;
  record.check = CheckOf(record);
  Header& header = *At<Header>(0);
  const uint64_t next = header.sequence.load() + 1;
  header.records[next % 2] = record;
  if (at_store != nullptr) at_store();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header.sequence.store(next, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  segment_->set_mark(record.kind == kEmpty ? 0 : record.counters.step);
  if (at_store != nullptr) at_store();
}

void WarmSegment::Remove() {
  segment_->Remove();
  const auto others = ListSegments(place_.registry, place_.node);
  if (!others.ok()) return;
  for (const RegisteredSegment& other : *others) {
    if (other.record.job == place_.job) RemoveSegment(place_.registry, other.name);
  }
}

std::nullptr_t WithoutWarmState(const absl::Status& why) {
  LogWarning(absl::StrCat(
      "no warm state: the steps of a worker that is killed are computed again from the last "
      "checkpoint on, since ",
      why.message()));
  return nullptr;
}

}  // namespace espalier
