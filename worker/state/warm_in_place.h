// WarmInPlace: a warm state without copies. The replica's own tensors (values, moments, gradient)
// lie in shared memory, and an update can be made again: one that was killed is finished to the bit
// by the next process.
//
//   empty --Commit--> clean at step s --Begin--> updating to s + 1 --Commit--> clean at step s + 1
//     ^------Clear---------+--------(killed: TakeFound finishes it)-----------------^
//
// Used by warm_copies.cc. Compute thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/optimizer/undo_log.h"
#include "worker/state/warm_state.h"

namespace espalier {

class WarmInPlace : public WarmState {
 public:
  // Moves the memory of what is trained into the segment; see OpenWarmState.
  static absl::StatusOr<std::unique_ptr<WarmInPlace>> Open(const WarmPlace& place,
                                                           const RunIdentity& identity,
                                                           Replica& replica);
  ~WarmInPlace() override;
  WarmInPlace(const WarmInPlace&) = delete;
  WarmInPlace& operator=(const WarmInPlace&) = delete;

  const std::optional<TrainingCounters>& found() const override { return found_; }
  std::string computed_by() const override { return segment_->LeftBy(); }
  absl::Status TakeFound() override;
  void Clear() override;
  // From here on the update will be made, if not by this process.
  void Begin(const TrainingCounters& after, const AdamW::Update& update) override;
  void Commit(const TrainingCounters& counters) override;
  void Finish() override {}
  void Remove() override { segment_->Remove(); }

  // For tests: called before and after each store by which a death is told from another.
  void set_at_store(void (*at_store)());

 private:
  using Arena = WarmSegment::Arena;
  struct Layout {
    std::vector<Arena> arenas;
    int64_t log = 0;  // offsets
    int64_t ids = 0;
    int64_t rows = 0;
    int64_t bytes = 0;
  };
  WarmInPlace(Replica& replica, Layout layout, std::shared_ptr<WarmSegment> segment);
  static Layout LayoutOf(Replica& replica);

  absl::Status MoveIn();
  absl::Status MoveOut();
  void FinishUpdate(const WarmSegment::Record& record);
  bool KeepLookups(const LookupGradient& lookups);
  void Write(WarmSegment::Record record);

  Replica& replica_;
  const Layout layout_;
  const std::shared_ptr<WarmSegment> segment_;  // the tensors own it too
  UndoLog log_;
  uint64_t number_ = 0;  // of updates begun since the segment was made
  std::optional<TrainingCounters> found_;
  bool unfinished_ = false;  // what was found
  bool told_ = false;
};

}  // namespace espalier
