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

// The content refers to `host`: keep both, and leave the replica alone, until it is written.
struct ReplicaContent {
  std::vector<torch::Tensor> host;  // the buffers; views of the replica's own on the CPU
  CheckpointContent content;
};
ReplicaContent ContentOf(Replica& replica, const RunIdentity& identity,
                         std::optional<double> validation_loss);

// Sets values, moments and counters. FAILED_PRECONDITION names the key when the checkpoint was made
// with other data, sequence length, global batch or order seed, since the order of samples could
// not be kept; INVALID_ARGUMENT when it is of another model.
absl::Status LoadReplica(const Checkpoint& checkpoint, const RunIdentity& identity,
                         Replica& replica);

}  // namespace espalier
