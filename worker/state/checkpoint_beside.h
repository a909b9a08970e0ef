// CheckpointBeside: one rank's part of a checkpoint that is made while steps go on, in two pieces
// of work on a thread of their own. First what is trained is hashed, and copied where this rank
// writes; that reads the replica, so the next update waits for it. Then, when all ranks have the
// same hash, the copy is written, synced, published and verified. Used by checkpoint_saver.h.
// Compute thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/state/checkpoint.h"
#include "worker/state/checkpoint_store.h"
#include "worker/state/replica.h"
#include "worker/sync/background_work.h"

namespace espalier {

// The same content, of which every tensor has been read into memory of its own.
// RESOURCE_EXHAUSTED when there is not so much. CANCELLED, here and when it is read, once
// `cancelled` is set, which outlives the content.
absl::StatusOr<CheckpointContent> CopyContent(const CheckpointContent& content,
                                              const std::atomic<bool>& cancelled);
// Bytes that CopyContent takes.
int64_t TensorBytesOf(const CheckpointContent& content);

class CheckpointBeside {
 public:
  // Begins to copy `content`, of the replica (none: this rank writes nothing), and to hash the
  // replica, which may be read but not changed until CopiedWithin says so. All outlive this.
  CheckpointBeside(Replica& replica, std::optional<CheckpointContent> content,
                   CheckpointStore& store, Clock& clock, HashThreads threads);
  ~CheckpointBeside() { Cancel(absl::InfiniteDuration()); }
  // Ends the work, without publishing what is not published yet; what is published stays, but is
  // not read back to its end. False: it has hung for longer than `patience`, and still refers to
  // all of this, so that the process must end.
  bool Cancel(absl::Duration patience);
  CheckpointBeside(const CheckpointBeside&) = delete;
  CheckpointBeside& operator=(const CheckpointBeside&) = delete;

  // The work in hand, of either piece: for AwaitTogether.
  BackgroundWork& work() { return writing_ ? *writing_ : *copying_; }
  bool working() { return !work().WaitFor(absl::ZeroDuration()); }
  // Whether the replica may be changed, within that time.
  bool CopiedWithin(absl::Duration time) { return copying_->WaitFor(time); }

  // Once the first piece is done: begins the second one.
  void StartWriting();
  bool writes() const { return writing_.has_value(); }

  Step step() const { return step_; }
  absl::Duration begun() const { return begun_; }
  // Bytes of the copy.
  int64_t bytes() const { return bytes_; }
  // Of the first piece, once it is done.
  uint64_t fingerprint() const { return fingerprint_; }
  // Of the second one, once it is done; an error of the first where there was nothing to write.
  const absl::StatusOr<PublishedCheckpoint>& published() const { return published_; }

 private:
  CheckpointStore& store_;
  Clock& clock_;
  const Step step_;
  const absl::Duration begun_;
  const int64_t bytes_;
  std::atomic<bool> cancelled_ = false;
  // Written by the thread of one piece, read when it is done.
  absl::StatusOr<CheckpointContent> copy_;
  uint64_t fingerprint_ = 0;
  absl::StatusOr<PublishedCheckpoint> published_ = PublishedCheckpoint();
  std::optional<BackgroundWork> copying_, writing_;  // the last members: they end first
};

}  // namespace espalier
