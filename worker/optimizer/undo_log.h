// UndoLog: what makes an update of neighbouring blocks redoable to the bit when the process is
// killed at any instant of it, for blocks in memory that outlives the process, as the log's does.
// Before a block is touched, a copy of it goes into a slot, and the block's mark says in which;
// when it is done, the mark says so. Whoever maps the memory next brings back the block that each
// slot holds, and makes the update of all that are not done.
//
//   mark of a block, in update N:   (of N - 1 or before) --> saved in slot s --> done
//
// Used by optimizer.h and worker/state/warm_in_place.h. Blocks by any threads, each with a slot of
// its own; the rest by one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace espalier {

class UndoLog {
 public:
  static constexpr int kSlots = 64;
  // Of all parts of a block together.
  static constexpr int64_t kSlotBytes = int64_t{320} << 10;
  // What an update of a block changes.
  static constexpr size_t kParts = 7;
  using Block = std::array<absl::Span<std::byte>, kParts>;

  // Of the log's memory: marks first, then slots, of which as many are used as there are threads.
  static int64_t Bytes(int64_t blocks);
  static int64_t BytesUsed(int64_t blocks, int slots);

  // Zeroed memory, or what an earlier process has left of a log of as many blocks.
  UndoLog(absl::Span<std::byte> memory, int64_t blocks);

  // Update `number` begins, or goes on after a death: it is larger than those of earlier updates
  // that were finished.
  void Begin(uint64_t number) { number_ = number; }

  // Undoes what was begun of a block and not finished; before any Save.
  void Restore(int64_t block, const Block& memory);
  bool IsDone(int64_t block) const { return marks_[block].load() == Mark(kDone); }
  // A block is about to change. It must not be done.
  void Save(int slot, int64_t block, const Block& memory);
  void Done(int64_t block);

  // For tests: called before and after each store of a mark, on the thread of the block.
  void (*at_mark)() = nullptr;

 private:
  using MarkWord = std::atomic<uint64_t>;
  static_assert(sizeof(MarkWord) == sizeof(uint64_t) && MarkWord::is_always_lock_free);
  static constexpr uint64_t kNothing = 0;
  static constexpr uint64_t kDone = 1;
  static constexpr uint64_t kSavedInSlot = 2;  // and those after it
  static constexpr uint64_t kStates = kSavedInSlot + kSlots;

  uint64_t Mark(uint64_t state) const { return number_ * kStates + state; }
  void Set(int64_t block, uint64_t state);
  std::byte* Slot(int slot) const { return slots_ + slot * kSlotBytes; }

  MarkWord* marks_;
  std::byte* slots_;
  uint64_t number_ = 0;
};

}  // namespace espalier
