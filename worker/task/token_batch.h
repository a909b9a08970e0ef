// TokenBatch: rows of samples as the tensors of one pass, and what the pass drops. Used by tasks
// and worker/train. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/v1/job.pb.h"
#include "worker/data/samples.h"
#include "worker/ops/dropout.h"
#include "worker/ops/operands.h"
#include "worker/tensor/torch.h"
#include "worker/tensor/transfers.h"

namespace espalier {

struct TokenBatch {
  // C is the sequence length T, or less where no target behind counts.
  torch::Tensor inputs;    // [rows, C] int64: columns [0, C) of the samples
  torch::Tensor targets;   // [rows, C] int64: columns [1, C]; kIgnoredTarget: does not count
  torch::Tensor weights;   // [rows * C] fp32: factors of the tokens' losses; undefined: 1
  SharedRows shared = {};  // of samples that examples share: begins [rows, C]
  // Of a task whose samples take several steps: what the slots of the rows have kept, and, to be
  // filled in by the loss, what they keep next. Such a pass is not recorded.
  std::vector<torch::Tensor> kept = {}, results = {};
  // Called by a loss that fills in many results, when it has asked for them: they go to the host
  // while gradients are computed. Empty: nobody waits.
  std::function<void()> results_known = {};
};

// The rows `rows` of `samples`, which must outlive the batch.
TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, Transfers& transfers);

// As many rows of as many tokens, all of which count, made up: to measure what a pass takes, or to
// be filled in later. Without weights; `packed`: as rows that examples share.
struct MadeUpRows {
  int64_t rows, sequence_length;
  bool packed = false;
};
TokenBatch MadeUpTokenBatch(const MadeUpRows& size, torch::Device device);

// What a training pass over those rows drops at a step: a function of (train.seed, step, sample),
// and in rows that examples share of the example, so that ranks, micro-batches and rows do not
// matter. None without model.dropout and train.lora.dropout.
DropoutKeys MakeDropoutKeys(const v1::JobSpec& spec, int64_t step, const Samples& samples,
                            SlotRange rows, Transfers& transfers);
// The same without the keys; and with those of no sample, for a pass over what was made up.
DropoutKeys DropoutRates(const v1::JobSpec& spec);
DropoutKeys MadeUpDropoutKeys(const DropoutKeys& rates, const TokenBatch& batch);

// The numbers that slots keep of samples which take several steps (Samples::carried), on their way
// to a pass and back. Where rows are those of slots that follow each other nothing is copied on the
// host, which would take longer than a step of a device, and what CUDA has made it keeps until the
// step after, in which the slots are mostly its own again.
//
// Of these rows, [rows, n] on the host: in their place where they lie behind one another.
torch::Tensor CarriedTogether(const Samples& samples, SlotRange rows);
// Writes `next` [rows, n], of a pass over these rows, to `numbers` [slots, n] on the host: from
// CUDA perhaps only when what follows Transfers::Join is done.
void KeepCarried(const Samples& samples, SlotRange rows, const torch::Tensor& next,
                 const torch::Tensor& numbers, Transfers& transfers);

}  // namespace espalier
