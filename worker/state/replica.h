// Replica: one rank's copy of what is trained: parameters, optimizer and the counters beside them.
// All replicas of a generation are equal, bit by bit, at every step boundary.
// Used by the trainer, start_state.h and checkpoints. Compute thread only.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/decoder.h"
#include "worker/model/parameters.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/precision.h"
#include "worker/sync/gradient_residual.h"

namespace espalier {

// What a replica is besides its flat buffers. Plain: it travels as bytes.
struct TrainingCounters {
  int64_t step = 0;     // committed steps: the number of the next one
  int64_t updates = 0;  // of the optimizer; steps less those that were skipped
  int64_t skipped = 0;
  int64_t skipped_in_a_row = 0;  // less those of the loss scale's search
  LossScale loss_scale;
};

class Replica {
 public:
  // Allocates everything, for the optimizer and the precision of `train`; the values are not set
  // (start_state.h does that). RESOURCE_EXHAUSTED names the bytes; FAILED_PRECONDITION when the
  // device does not compute in that precision; INVALID_ARGUMENT when train.recompute does not fit
  // the model.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(const DecoderConfig& config,
                                                         const v1::TrainSpec& train,
                                                         torch::Device device);

  const DecoderConfig& config() const { return decoder_.config(); }
  Parameters& parameters() { return *parameters_; }
  Decoder& decoder() { return decoder_; }
  AdamW& optimizer() { return optimizer_; }
  TrainingCounters& counters() { return counters_; }
  GradientResidual& residual() { return residual_; }
  Step step() const { return Step(counters_.step); }

  // Values and what Moments::Buffers names, flat.
  std::vector<torch::Tensor> Buffers();
  // A hash of all that is equal on all ranks: of the residual only when it is gathered.
  uint64_t Fingerprint();

 private:
  Replica(const DecoderConfig& config, std::unique_ptr<Parameters> parameters, AdamW optimizer);
  std::unique_ptr<Parameters> parameters_;
  Decoder decoder_;
  AdamW optimizer_;
  TrainingCounters counters_;
  GradientResidual residual_;
};

}  // namespace espalier
