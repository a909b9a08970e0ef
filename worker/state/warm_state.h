// WarmState: what a replica holds (values, moments) as it outlives the process, in shared memory:
// steps that were committed are not computed again while one replica's lives. It does not outlive
// the machine; checkpoints do. Where the update runs on the host the replica's own tensors lie
// there (warm_in_place.h); of a device with memory of its own, copies (warm_copies.h).
//
//   empty --Commit--> at step s --Begin, Commit--> at step s + 1
//     ^-----Clear--------+
//
// Used by worker/session.cc, start_state.h and worker/train: trainer.h, milestones.h. Compute
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/state/replica.h"
#include "worker/state/replica_checkpoint.h"
#include "worker/state/warm_segment.h"

namespace espalier {

class WarmState {
 public:
  virtual ~WarmState() = default;

  // What the memory holds since Open, an update that is to be finished counted, until Clear or
  // Commit.
  virtual const std::optional<TrainingCounters>& found() const = 0;
  // How that was computed: RunIdentity's. Empty: it does not matter.
  virtual std::string computed_by() const = 0;
  // Makes the replica what was found, having finished the update that was interrupted. Gradients
  // that int8 still owed are forgotten: they were its own rank's, and in the middle of an exchange.
  virtual absl::Status TakeFound() = 0;

  // Whoever is about to write to the replica other than by an update says so: what is there counts
  // no more until the next Commit.
  virtual void Clear() = 0;
  // The step's sums are final and the update of the optimizer follows, after which the counters are
  // `after`. Waits for what still reads the replica.
  virtual void Begin(const TrainingCounters& after, const AdamW::Update& update) = 0;
  // The replica is the state of these counters.
  virtual void Commit(const TrainingCounters& counters) = 0;
  // The run ends, well or not: from here on the memory is as new as it can be. Throws nothing,
  // whatever the device does: the run ends with its own reason.
  virtual void Finish() = 0;

  // It is in a checkpoint, or not wanted any more: nothing is left when this process has ended, of
  // other workers of the job on this node neither unless they run.
  virtual void Remove() = 0;
};

}  // namespace espalier
