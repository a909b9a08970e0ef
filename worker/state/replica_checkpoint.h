// The replica as the content of a checkpoint, and back; and RunIdentity: what must be the same on
// all ranks, and between a checkpoint and the run that resumes from it, for the order of samples
// and the mathematics to hold. Used by worker/state and worker/job_inputs.h. Compute thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/job.pb.h"
#include "worker/state/checkpoint.h"
#include "worker/state/replica.h"
#include "worker/state/trainer_state.h"
#include "worker/sync/together.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Fails on all ranks alike, with the rank and the key, unless all have the same job, data,
// architecture and adapters.
// Paths, device and threads may differ from node to node.
absl::Status CheckSameRun(const RankContext& context, const RunIdentity& identity);

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
