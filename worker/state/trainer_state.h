// trainer_state.json: what a checkpoint says of its run besides tensors: the counters, the order of
// samples, the job, above which frozen values it was trained, and how it was computed. Used by
// worker/state (replica_checkpoint.h, warm_segment.h, start_state.cc) and worker/session.cc.
// Compute thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/optimizer/precision.h"
#include "worker/state/checkpoint.h"
#include "worker/state/replica.h"

namespace espalier {

inline constexpr size_t kComputedByBytes = 256;

// What two checkpoints must have in common to be of one run.
struct RunIdentity {
  v1::JobSpec spec;
  std::string data_hash;  // SHA-256 (hex) of the data's manifest
  int64_t training_samples = 0;
  std::string architecture;  // ArchitectureJson
  std::string ends;          // ids that end what is sampled; those of a checkpoint may be others
  std::string adapters;      // AdaptersText
  // Where every bit must stay as it is (train.reproducible): how this rank computes, in less than
  // kComputedByBytes. Empty: any rank may go on.
  std::string computed_by;
  // Written beside the weights; empty: left out.
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

std::string TrainerStateJson(Replica& replica, const RunIdentity& identity);

struct TrainerState {
  TrainingCounters counters;
  // What the checkpoint's gradients were scaled by; the run may go on with another scale.
  LossScale saved_scale;
};
// FAILED_PRECONDITION names the key when the order of samples could not be kept.
absl::StatusOr<TrainerState> ReadTrainerState(const Checkpoint& checkpoint,
                                              const RunIdentity& identity);

// What can be seen of a checkpoint before it is loaded, whose ever it is.
struct Glance {
  std::string computed_by;  // RunIdentity's; empty: it does not matter, or is not known
  int64_t evaluated = 0;    // the last step whose evaluation is counted in it
};
Glance GlanceAt(const Checkpoint& checkpoint);

// FAILED_PRECONDITION when it was trained above other values of the frozen parameters than the
// replica's: the run would be another model.
absl::Status CheckFrozen(const Checkpoint& checkpoint, Replica& replica);

}  // namespace espalier
