// WarmCopies: the warm state of a device with memory of its own (CUDA). What is trained is copied
// into shared memory while the next step's passes run, which read it too; the update waits for
// that. There are two slots: the newer one holds the last step whose copy was whole. So a process
// that is killed loses the step whose copy was being made; one that ends otherwise, nothing.
// Where the copy takes longer than the passes, fewer steps are copied, so that updates wait for a
// hundredth of the time at most.
//
//   Commit: slot of the older copy <- replica   (thread of its own)   then its record
//   Begin:  waits for that
//
// Used by worker/session.cc, which knows the interface alone otherwise. Compute thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "worker/state/warm_state.h"
#include "worker/sync/background_work.h"
#include "worker/tensor/transfers.h"

namespace espalier {

// The warm state of a replica, of the kind that its device needs. What an earlier process of the
// same run left in that place is kept (found), what another run left is not. Null: no shared memory
// is to be had, and the replica is as it was; the log says why, what is lost by it and what to do.
// The replica's values are not set before, and it outlives this. An error leaves it of no use.
absl::StatusOr<std::unique_ptr<WarmState>> OpenWarmState(const WarmPlace& place,
                                                         const RunIdentity& identity,
                                                         Replica& replica);

class WarmCopies : public WarmState {
 public:
  // So much of the time may updates wait for copies.
  static constexpr int kShareOfTime = 100;

  // Reserves memory for both slots; see OpenWarmState. For tests the replica may be on the CPU.
  static absl::StatusOr<std::unique_ptr<WarmCopies>> Open(const WarmPlace& place,
                                                          const RunIdentity& identity,
                                                          Replica& replica, Clock& clock);
  ~WarmCopies() override;
  WarmCopies(const WarmCopies&) = delete;
  WarmCopies& operator=(const WarmCopies&) = delete;

  const std::optional<TrainingCounters>& found() const override { return found_; }
  std::string computed_by() const override { return segment_->LeftBy(); }
  absl::Status TakeFound() override;
  void Clear() override;
  void Begin(const TrainingCounters& after, const AdamW::Update& update) override;
  void Commit(const TrainingCounters& counters) override;
  // Copies a state that is not copied yet, unless an update of it was begun.
  void Finish() override;
  void Remove() override;

  // For tests: called before and after each store by which a death is told from another.
  void set_at_store(void (*at_store)()) { segment_->at_store = at_store; }

 private:
  using Slot = std::vector<WarmSegment::Arena>;
  WarmCopies(Replica& replica, std::vector<Slot> slots, std::shared_ptr<WarmSegment> segment,
             Clock& clock);
  // Copies what the device has at this moment, of these counters.
  void Start(const TrainingCounters& counters);
  absl::Status CopyInto(const Slot& slot);
  void Await();
  // No copies are made after an error of one.
  void GiveUpAfter(const absl::Status& copied);

  Replica& replica_;
  const std::vector<Slot> slots_;
  const std::shared_ptr<WarmSegment> segment_;
  Clock& clock_;
  Transfers transfers_;
  std::vector<torch::Tensor> staging_;  // two pieces of host memory that the device writes to
  uint64_t number_ = 0;                 // of copies; the slot of an even one is the first
  std::optional<TrainingCounters> found_;
  // The replica's, where they are not copied; none: an update was begun, or all is copied.
  std::optional<TrainingCounters> not_copied_;
  absl::Duration begun_;  // the copy under way
  absl::Duration next_at_;
  bool failed_ = false;
  std::optional<BackgroundWork> copying_;  // the last member: it ends first
};

}  // namespace espalier
