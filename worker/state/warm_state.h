// WarmState: a replica's memory (values, moments, gradient) in shared memory, which outlives the
// process: no committed step is computed twice while one replica's lives, and a step that was
// killed in its update is finished to the bit by the next process. On the CPU, where nothing is
// copied for it: the replica's tensors lie there. It does not outlive the machine; checkpoints do.
//
//   empty --Commit--> clean at step s --Begin--> updating to s + 1 --Commit--> clean at step s + 1
//     ^------Clear---------+--------(killed: TakeFound finishes it)-----------------^
//
// Used by worker/session.cc, start_state.h and worker/train: trainer.h, milestones.h. Compute
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/shared_segment.h"
#include "worker/optimizer/undo_log.h"
#include "worker/state/replica.h"
#include "worker/state/replica_checkpoint.h"

namespace espalier {

class WarmState {
 public:
  // Whose it is, and the folder that knows of it.
  struct Place {
    std::string registry;
    std::string job;  // empty: a run without espalierd
    std::string node;
    int worker = 0;       // of the job on this node
    int64_t history = 0;  // of the job
    int64_t generation = 0;
  };
  // Moves the memory of what is trained into the segment of that place: what an earlier process of
  // the same run left there is kept (found), what another run left is not. Null: no shared memory
  // is to be had, and the replica stays where it was; the log says why, what is lost by it and what
  // to do. Its values are not set before. The replica outlives this. An error leaves it of no use.
  static absl::StatusOr<std::unique_ptr<WarmState>> Open(const Place& place,
                                                         const RunIdentity& identity,
                                                         Replica& replica);
  ~WarmState();
  WarmState(const WarmState&) = delete;
  WarmState& operator=(const WarmState&) = delete;

  // What the memory holds since Open, an update that is to be finished counted, until Clear or
  // Commit.
  const std::optional<TrainingCounters>& found() const { return found_; }
  // Makes the replica what was found, having finished the update that was interrupted. Gradients
  // that int8 still owed are forgotten: they were its own rank's, and in the middle of an exchange.
  absl::Status TakeFound();

  // Whoever is about to write to the memory other than by an update says so: what is there counts
  // no more until the next Commit.
  void Clear();
  // The step's sums are final and the update of the optimizer follows, after which the counters are
  // `after`. From here on it will be made, if not by this process.
  void Begin(const TrainingCounters& after, const AdamW::Update& update);
  // The memory is the state of these counters.
  void Commit(const TrainingCounters& counters);

  // It is in a checkpoint, or not wanted any more: nothing is left when this process has ended, of
  // other workers of the job on this node neither unless they run.
  void Remove();

  // For tests: called before and after each store by which a death is told from another.
  void set_at_store(void (*at_store)());

 private:
  struct Record;
  struct Header;
  struct Arena {
    torch::Tensor tensor;
    int64_t offset = 0;
  };
  struct Layout {
    std::vector<Arena> arenas;
    int64_t log = 0;  // offsets
    int64_t ids = 0;
    int64_t rows = 0;
    int64_t bytes = 0;
  };
  WarmState(Place place, Replica& replica, Layout layout, std::shared_ptr<SharedSegment> segment);
  static Layout LayoutOf(Replica& replica);
  static std::string LayoutText(const RunIdentity& identity, const Layout& layout,
                                Replica& replica);

  absl::Status MoveIn();
  absl::Status MoveOut();
  void FinishUpdate(const Record& record);
  bool KeepLookups(const LookupGradient& lookups);
  std::optional<Record> Read() const;
  void Write(Record record);
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(segment_->bytes().data() + offset);
  }

  const Place place_;
  Replica& replica_;
  const Layout layout_;
  const std::shared_ptr<SharedSegment> segment_;  // the tensors own it too
  UndoLog log_;
  uint64_t number_ = 0;  // of updates begun since the segment was made
  std::optional<TrainingCounters> found_;
  bool unfinished_ = false;  // what was found
  bool told_ = false;
  void (*at_store_)() = nullptr;
};

}  // namespace espalier
