// TokenBatch: rows of samples as the tensors of one pass, and what the pass drops. Used by the
// trainer and evaluation. Compute thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "common/base/random.h"
#include "espalier/v1/job.pb.h"
#include "worker/data/samples.h"
#include "worker/ops/dropout.h"
#include "worker/tensor/transfers.h"

namespace espalier {

struct TokenBatch {
  torch::Tensor inputs;   // [rows, T] int64: columns [0, T) of the windows
  torch::Tensor targets;  // [rows, T] int64: columns [1, T]
};

// The rows `rows` of `samples`, which must outlive the batch.
inline TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, Transfers& transfers) {
  const int64_t width = static_cast<int64_t>(samples.tokens.size()) / samples.rows();
  const torch::Tensor windows = transfers.ToDevice(
      torch::from_blob(const_cast<int64_t*>(samples.tokens.data()) + rows.begin * width,
                       {rows.size(), width}, torch::kInt64));
  return {windows.narrow(1, 0, width - 1).contiguous(),
          windows.narrow(1, 1, width - 1).contiguous()};
}

// What a training pass over those rows drops at a step: a function of (train.seed, step, sample),
// so that ranks and micro-batches do not matter. None without model.dropout.
inline DropoutKeys MakeDropoutKeys(const v1::JobSpec& spec, int64_t step, const Samples& samples,
                                   SlotRange rows, Transfers& transfers) {
  if (spec.model().dropout() == 0) return {};
  const uint64_t of_step = SplitMix64(spec.train().seed(), static_cast<uint64_t>(step)).Next();
  std::vector<int64_t> keys;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint64_t sample = SplitMix64(static_cast<uint64_t>(samples.ids[row])).Next();
    keys.push_back(static_cast<int64_t>(MixBits(of_step ^ sample)));
  }
  return {spec.model().dropout(), transfers.ToDevice(torch::tensor(keys, torch::kInt64))};
}

}  // namespace espalier
