// PassRunner: one pass, forward and backward over a micro-batch. On devices that can (CUDA graphs),
// passes over a size that comes again and again are recorded and from then on launched at once: in
// a small model, launching kernel after kernel takes longer than the kernels. Used by worker/train
// and by tests/bench. Compute thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/model.h"
#include "worker/model/parameters.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/dropout.h"
#include "worker/task/task.h"
#include "worker/tensor/torch.h"

namespace espalier {

class PassRunner {
 public:
  // All outlive this.
  PassRunner(const Task& task, const Model& model, const Parameters& parameters);

  // Adds `loss_scale` times the gradient of the loss, and returns the loss: a scalar on the device.
  // A pass that tells of final gradients, or looks ids up in rows of its own, does not run as
  // recorded. Throws what LibTorch throws.
  torch::Tensor Run(const TokenBatch& batch, const PassInputs& inputs, double loss_scale);

  bool CanRecord() const;
  // Records passes over these numbers of sequences of T tokens, and forgets others. Frees the
  // caches of allocators. Each of these sizes must have run before, since what is set up in a first
  // run cannot be recorded. After an error nothing is recorded, and passes run as ever.
  absl::Status Record(std::vector<int64_t> sizes, int64_t time, const DropoutKeys& rates);
  // Waits for the device and gives back what recordings hold.
  void Forget();
  // Device memory that recordings keep for themselves and that is in no tensor between passes.
  int64_t recorded_bytes() const { return recorded_bytes_; }

 private:
  // A recorded pass reads and writes these and nothing else but parameters and gradients.
  struct Recording {
    TokenBatch batch;
    DropoutKeys dropout;
    torch::Tensor loss_scale;  // scalar, fp32
    torch::Tensor loss;
    RopeTable rope;              // kept, should the model replace its own
    std::vector<bool> receives;  // of the gradient leaves
    std::unique_ptr<cuda::Graph> graph;
  };
  torch::Tensor Compute(const TokenBatch& batch, const PassInputs& inputs,
                        const torch::Tensor& loss_scale) const;
  Recording* RecordingFor(const TokenBatch& batch, const PassInputs& inputs);
  std::vector<bool> Receives() const;
  Recording MakeRecording(int64_t size, int64_t time, const DropoutKeys& rates) const;
  torch::Tensor Replay(Recording& recording, const TokenBatch& batch, const DropoutKeys& dropout,
                       double loss_scale) const;

  const Task& task_;
  const Model& model_;
  const std::vector<torch::Tensor> leaves_;
  std::map<int64_t, Recording> recordings_;  // by size
  int64_t recorded_bytes_ = 0;
};

}  // namespace espalier
