// WarmSegment: the shared memory of a warm state, with the two records at its beginning that say
// what it holds. A death at any instant leaves the one before or the new one. Used by
// warm_in_place.h and warm_copies.h. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/shared_segment.h"
#include "worker/optimizer/optimizer.h"
#include "worker/state/replica.h"
#include "worker/state/trainer_state.h"

namespace espalier {

// Whose a warm state is, and the folder that knows of it.
struct WarmPlace {
  std::string registry;
  std::string job;  // empty: a run without espalierd
  std::string node;
  int worker = 0;       // of the job on this node
  int64_t history = 0;  // of the job
  int64_t generation = 0;
};

class WarmSegment {
 public:
  enum Kind : uint64_t { kEmpty, kClean, kUpdating };
  // Plain words, without gaps.
  struct Record {
    uint64_t kind = kEmpty;
    uint64_t number = 0;  // of the newest update that was begun, or of the copy
    TrainingCounters counters;
    AdamW::Update update;
    int64_t lookups = 0;
    std::array<char, kComputedByBytes> computed_by{};  // set by Write; a text that ends with 0
    uint64_t check = 0;
  };
  // A tensor of the replica and where in the segment its bytes lie.
  struct Arena {
    torch::Tensor tensor;
    int64_t offset = 0;
  };

  // Where what follows the records may begin, and what follows something that ends there.
  static int64_t Begin();
  static int64_t PageEnd(int64_t bytes);
  // What must be equal for the bytes to mean the same, and for the order of samples to go on.
  static std::string LayoutText(const RunIdentity& identity, const std::vector<Arena>& arenas,
                                Replica& replica);

  // Memory of that size: what was left there is kept when its layout is the same and it holds a
  // step; else it is zeroed. `computed_by`: of what is written from now on.
  static absl::StatusOr<std::shared_ptr<WarmSegment>> Open(const WarmPlace& place,
                                                           const std::string& layout, int64_t bytes,
                                                           const std::string& computed_by);

  // What was left; its number goes on.
  const std::optional<Record>& left() const { return left_; }
  std::string LeftBy() const { return left_ ? left_->computed_by.data() : ""; }
  // See SharedSegment.
  absl::Status Reserve(int64_t begin, int64_t size) { return segment_->Reserve(begin, size); }
  absl::Span<std::byte> bytes() const { return segment_->bytes(); }
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(segment_->bytes().data() + offset);
  }

  // The last record that was written whole. Absent: none was, or it is damaged.
  std::optional<Record> Read() const;
  void Write(Record record);
  // See WarmState.
  void Remove();
  // This segment alone; what maps it keeps it.
  void Drop() { segment_->Remove(); }

  // For tests: called before and after each store by which a death is told from another.
  void (*at_store)() = nullptr;

 private:
  struct Header;
  WarmSegment(WarmPlace place, std::unique_ptr<SharedSegment> segment,
              const std::string& computed_by);

  const WarmPlace place_;
  const std::unique_ptr<SharedSegment> segment_;
  std::array<char, kComputedByBytes> computed_by_{};
  std::optional<Record> left_;
};

// Null, and a word to the log on why there is no warm state.
std::nullptr_t WithoutWarmState(const absl::Status& why);

}  // namespace espalier
