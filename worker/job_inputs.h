// JobInputs: what a job reads before a model is built: its data, the task on it, and the model's
// configuration. Opening them is most of what tells whether a machine can train the job at all.
// Used by worker/session.h and worker/rehearse_verb.cc. Compute thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/formats/decoder_config.h"
#include "worker/state/replica_checkpoint.h"
#include "worker/task/task.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct JobInputs {
  std::unique_ptr<Dataset> dataset;  // the task reads it
  std::unique_ptr<Task> task;
  RunIdentity identity;  // model.from of its spec is where the model was found
  DecoderConfig config;
};

// Verifies the data, which is hashed once; the log is told how far that is. Errors say what is
// missing on this machine, or wrong with it.
absl::StatusOr<JobInputs> OpenJobInputs(const v1::JobSpec& given);

// A worker among those of the job.
struct WorkerPlace {
  int64_t memory_limit_bytes = 0;  // 0: none
  int ranks = 1;
  int local_ranks = 1;  // on this machine
};

// Refuses a state that is larger than the memory that the machine has: the system would end the
// process without a word. FAILED_PRECONDITION, since it never fits there. On MPS, has LibTorch take
// no more than what the rest leaves: call it before anything is allocated there.
absl::Status FitMemory(const v1::JobSpec& spec, const DecoderConfig& config, torch::Device device,
                       const WorkerPlace& place);

// The tighter of the job's and the node's; 0: neither says one.
int64_t MemoryLimitOf(const v1::JobSpec& spec, int64_t of_node);

}  // namespace espalier
