// TokenBatch: rows of samples as the tensors of one pass. Used by the trainer and evaluation.
// Compute thread.
#pragma once

#include <torch/torch.h>

#include "worker/engine/samples.h"

namespace espalier {

struct TokenBatch {
  torch::Tensor inputs;   // [rows, T] int64: columns [0, T) of the windows
  torch::Tensor targets;  // [rows, T] int64: columns [1, T]
};

// The rows `rows` of `samples`, which must outlive the batch.
inline TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, torch::Device device) {
  const int64_t width = static_cast<int64_t>(samples.tokens.size()) / samples.rows();
  const torch::Tensor windows =
      torch::from_blob(const_cast<int64_t*>(samples.tokens.data()) + rows.begin * width,
                       {rows.size(), width}, torch::kInt64)
          .to(device);
  return {windows.narrow(1, 0, width - 1).contiguous(),
          windows.narrow(1, 1, width - 1).contiguous()};
}

}  // namespace espalier
