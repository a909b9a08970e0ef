// Replica: one rank's copy of what is trained: parameters, optimizer and the counters beside them.
// All replicas of a generation are equal, bit by bit, at every step boundary.
// Used by worker/train, worker/session.h, worker/job_inputs.cc, worker/rehearse_verb.cc,
// start_state.h, checkpoint_saver.h and replica_checkpoint.h. Compute thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/model.h"
#include "worker/model/parameters.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/precision.h"
#include "worker/optimizer/validation_progress.h"
#include "worker/state/slot_states.h"
#include "worker/sync/exact_sums.h"
#include "worker/sync/gradient_residual.h"
#include "worker/sync/together.h"
#include "worker/tensor/flat_tensor.h"
#include "worker/tensor/torch.h"

namespace espalier {

// What a replica is besides its flat buffers. Plain: it travels as bytes.
struct TrainingCounters {
  int64_t step = 0;     // committed steps: the number of the next one
  int64_t updates = 0;  // of the optimizer; steps less those that were skipped
  int64_t skipped = 0;
  int64_t skipped_in_a_row = 0;  // less those of the loss scale's search
  LossScale loss_scale;
  ValidationProgress validation;
  // Of a task that makes what it learns from: a hash of that, which all steps go on with, or of
  // what there was up to this one. 0: it does not, or it is not known.
  uint64_t learns_from = 0;
};

// How a job keeps its parameters on a device. INVALID_ARGUMENT when train.freeze or train.lora does
// not fit the model; FAILED_PRECONDITION when the device has no such precision, or is not
// reproducible and is to be.
absl::StatusOr<Parameters::Options> ParameterOptions(const DecoderConfig& config,
                                                     const v1::TrainSpec& train,
                                                     torch::Device device);

// Threads that hash: all that compute, or the one that asks, beside those.
enum class HashThreads { kAll, kOne };

class Replica {
 public:
  // Allocates everything, for the optimizer, the precision and the frozen parameters of `train`;
  // the values are not set (start_state.h does that). RESOURCE_EXHAUSTED names the bytes;
  // FAILED_PRECONDITION when the device does not compute in that precision; INVALID_ARGUMENT when
  // train.recompute, train.freeze or train.lora does not fit the model.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(const DecoderConfig& config,
                                                         const v1::TrainSpec& train,
                                                         torch::Device device) {
    return Create(config, train, device, {});
  }
  struct Places {
    int64_t arena_elements = kArenaElements;
    // As with MPS, also on other devices: for tests.
    bool values_on_host = false;
  };
  static absl::StatusOr<std::unique_ptr<Replica>> Create(const DecoderConfig& config,
                                                         const v1::TrainSpec& train,
                                                         torch::Device device,
                                                         const Places& places);

  const DecoderConfig& config() const { return model_->config(); }
  const Parameters::Options& parameter_options() const { return options_; }
  Parameters& parameters() { return *parameters_; }
  Model& model() { return *model_; }
  AdamW& optimizer() { return optimizer_; }
  // The model with the moving average of what is trained, as it is now: for evaluation. Null: there
  // is none (train.ema). RESOURCE_EXHAUSTED as Parameters::WithValues.
  struct Averaged {
    Parameters parameters;
    std::unique_ptr<Model> model;
  };
  absl::StatusOr<std::unique_ptr<Averaged>> MakeAveraged() const;
  TrainingCounters& counters() { return counters_; }
  GradientResidual& residual() { return residual_; }
  // What a task keeps from one step to the next; to be allocated before the warm state is opened.
  SlotStates& slots() { return slots_; }
  // Where sums of a gradient that is on a device are made. Here, since it must last as long as the
  // operations of the collective, which a failed step leaves behind.
  FlatTensor& host_gradient() { return host_gradient_; }
  ExactSums& exact_sums() { return exact_sums_; }
  // Allocates what an exchange among so many ranks needs besides. RESOURCE_EXHAUSTED names the
  // bytes.
  absl::Status PrepareExchange(int ranks, const v1::JobSpec& spec);
  Step step() const { return Step(counters_.step); }

  // Values of what is trained and their average, what Moments::Buffers names, and what slots keep.
  std::vector<torch::Tensor> Buffers();
  // A hash of all that is trained, equal on all ranks: of the residual only when it is gathered.
  // Means nothing, and comes soon, once `cancelled` is set.
  uint64_t Fingerprint(HashThreads threads = HashThreads::kAll,
                       const std::atomic<bool>* cancelled = nullptr);
  // The same of what is frozen, whose values are set before the first call.
  uint64_t FrozenFingerprint();
  bool has_frozen() const { return parameters_->trained().size() < parameters_->all().size(); }

 private:
  std::vector<torch::Tensor> UpdatedBuffers();
  Replica(const DecoderConfig& config, const Parameters::Options& options,
          std::unique_ptr<Parameters> parameters, AdamW optimizer);
  Parameters::Options options_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Model> model_;
  AdamW optimizer_;
  TrainingCounters counters_;
  GradientResidual residual_;
  SlotStates slots_;
  FlatTensor host_gradient_;
  ExactSums exact_sums_;
  std::optional<uint64_t> frozen_fingerprint_;
};

// Whether all ranks still hold the same bits: memory that flipped one, or an exchange that did,
// would go unnoticed into every checkpoint. Every rank calls this at the same step. INTERNAL, the
// same on all: those whose bits are not those of most ranks are named (FailedRanks), all of them
// where there is no majority.
absl::Status CheckReplicasEqual(const RankContext& context, Replica& replica);
// The same of fingerprints that the ranks have made of that step.
absl::Status CheckFingerprintsEqual(Collective& collective, uint64_t mine, Step step);
// Whether that is what the error says: devices and the collective have others, after which the bits
// may be as good as ever.
bool IsOfUnequalReplicas(const absl::Status& status);

}  // namespace espalier
