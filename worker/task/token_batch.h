// TokenBatch: rows of samples as the tensors of one pass, and what the pass drops. Used by tasks
// and worker/train. Compute thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "espalier/v1/job.pb.h"
#include "worker/data/samples.h"
#include "worker/ops/dropout.h"
#include "worker/tensor/transfers.h"

namespace espalier {

struct TokenBatch {
  // C is the sequence length T, or less where no target behind counts.
  torch::Tensor inputs;   // [rows, C] int64: columns [0, C) of the samples
  torch::Tensor targets;  // [rows, C] int64: columns [1, C]; kIgnoredTarget: does not count
  torch::Tensor weights;  // [rows * C] fp32: factors of the tokens' losses; undefined: 1
};

// The rows `rows` of `samples`, which must outlive the batch.
TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, Transfers& transfers);

// As many rows of as many tokens, all of which count, made up: to measure what a pass takes, or to
// be filled in later. Without weights.
TokenBatch MadeUpTokenBatch(int64_t rows, int64_t sequence_length, torch::Device device);

// What a training pass over those rows drops at a step: a function of (train.seed, step, sample),
// so that ranks and micro-batches do not matter. None without model.dropout and train.lora.dropout.
DropoutKeys MakeDropoutKeys(const v1::JobSpec& spec, int64_t step, const Samples& samples,
                            SlotRange rows, Transfers& transfers);
// The same without the keys.
DropoutKeys DropoutRates(const v1::JobSpec& spec);

}  // namespace espalier
