// Between a Replica and the files of a checkpoint: names of tensors, trainer_state.json, and what a
// checkpoint must share with the run that resumes from it. Used by start_state.cc and
// checkpoint_saver.cc. Compute thread (or a thread it waits for).
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "worker/state/checkpoint.h"
#include "worker/state/replica.h"
#include "worker/state/run_identity.h"

namespace espalier {

// What is trained, and what belongs to it. The content reads the replica when it is written: leave
// the replica alone until then.
CheckpointContent ContentOf(Replica& replica, const RunIdentity& identity,
                            std::optional<double> validation_loss);

// Sets the values of what is trained, moments and counters. FAILED_PRECONDITION names the key when
// the checkpoint was made with other data, sequence length, global batch or order seed, since the
// order of samples could not be kept; INVALID_ARGUMENT when it is of another model.
absl::Status LoadReplica(const Checkpoint& checkpoint, const RunIdentity& identity,
                         Replica& replica);

}  // namespace espalier
