// GradientPasses: the gradient sums of a rank's shard of a step: micro-batches of the task's
// samples, forward and backward, of which the last one hands gradients over as they become final.
// Used by trainer.h. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/data/samples.h"
#include "worker/state/replica.h"
#include "worker/sync/synchroniser.h"
#include "worker/sync/together.h"
#include "worker/task/task.h"
#include "worker/tensor/transfers.h"
#include "worker/train/layer_progress.h"
#include "worker/train/micro_batches.h"
#include "worker/train/pace.h"
#include "worker/train/pass_memory.h"
#include "worker/train/pass_runner.h"

namespace espalier {

class GradientPasses {
 public:
  // All outlive this.
  struct Parts {
    const v1::JobSpec& spec;
    RankContext context;
    const Task& task;
    Replica& replica;
    Synchroniser& synchroniser;
    PassMemory& memory;
    PassRunner& runner;
    Pace::Options pace = {};
  };
  explicit GradientPasses(const Parts& parts);

  // Leaves the gradient sums of the shard, times the loss scale, in the flat gradient, zero before
  // (those of lookups apart come with Synchroniser::FinishSums), and returns the loss and the
  // number of tokens that count. An empty shard adds nothing. INTERNAL when the device has not done
  // all of it (WorkCount).
  absl::StatusOr<StepTotals> Run(const Samples& samples);
  // Rows of the largest micro-batch of the last Run.
  int64_t largest() const { return micro_batches_.largest(); }

 private:
  absl::StatusOr<EmbeddingRows> BeginStep(const Samples& samples);
  void Pass(const Samples& samples, SlotRange rows, const PassInputs& step_inputs, bool last);
  // The loss.
  torch::Tensor Compute(const Samples& samples, SlotRange rows, PassInputs& inputs);

  const Parts parts_;
  MicroBatches micro_batches_;
  Pace pace_;
  WorkCount count_;
  const std::function<void(int64_t)> worked_;  // of every pass, so that it knows the device
  Transfers transfers_;
  std::vector<torch::Tensor> losses_;  // of the step's micro-batches, on the device
  // What those leave that their slots are to keep.
  struct Left {
    SlotRange rows;
    std::vector<torch::Tensor> results;
  };
  std::vector<Left> left_;
};

}  // namespace espalier
