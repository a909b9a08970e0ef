#include "worker/optimizer/undo_log.h"

#include <cstring>

#include "common/base/check.h"

namespace espalier {
namespace {

// Slots begin with a page of every system.
constexpr int64_t kPage = 16384;

int64_t BytesOfMarks(int64_t blocks) {
  const int64_t bytes = blocks * static_cast<int64_t>(sizeof(uint64_t));
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

int64_t UndoLog::Bytes(int64_t blocks) { return BytesUsed(blocks, kSlots); }

int64_t UndoLog::BytesUsed(int64_t blocks, int slots) {
  return BytesOfMarks(blocks) + slots * kSlotBytes;
}

UndoLog::UndoLog(absl::Span<std::byte> memory, int64_t blocks)
    : marks_(reinterpret_cast<MarkWord*>(memory.data())),
      slots_(memory.data() + BytesOfMarks(blocks)) {
  ESPALIER_CHECK(static_cast<int64_t>(memory.size()) >= Bytes(blocks), "the log needs its memory");
}

// A process that dies has made its stores up to some instruction, whatever the processor's order;
// the order of the program is the compiler's to keep.
void UndoLog::Set(int64_t block, uint64_t state) {
  if (at_mark != nullptr) at_mark();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  marks_[block].store(Mark(state), std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (at_mark != nullptr) at_mark();
}

void UndoLog::Restore(int64_t block, const Block& memory) {
  const uint64_t mark = marks_[block].load();
  if (mark < Mark(kSavedInSlot) || mark >= Mark(kStates)) return;
  const std::byte* from = Slot(static_cast<int>(mark - Mark(kSavedInSlot)));
  for (const absl::Span<std::byte>& part : memory) {
    if (!part.empty()) std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
  Set(block, kNothing);
}

void UndoLog::Save(int slot, int64_t block, const Block& memory) {
  std::byte* to = Slot(slot);
  for (const absl::Span<std::byte>& part : memory) {
    if (!part.empty()) std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  Set(block, kSavedInSlot + static_cast<uint64_t>(slot));
}

void UndoLog::Done(int64_t block) { Set(block, kDone); }

}  // namespace espalier
