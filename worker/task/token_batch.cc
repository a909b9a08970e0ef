#include "worker/task/token_batch.h"

#include <vector>

#include "common/base/random.h"
#include "worker/ops/row_loss.h"

namespace espalier {

TokenBatch MakeTokenBatch(const Samples& samples, SlotRange rows, Transfers& transfers) {
  const int64_t time = samples.sequence_length(), width = time + 1;
  const torch::Tensor windows = transfers.ToDevice(
      torch::from_blob(const_cast<int64_t*>(samples.tokens.data()) + rows.begin * width,
                       {rows.size(), width}, torch::kInt64));
  TokenBatch batch;
  batch.inputs = windows.narrow(1, 0, time).contiguous();
  batch.targets = windows.narrow(1, 1, time).contiguous();
  if (samples.counted.empty()) return batch;
  const torch::Tensor counted = transfers.ToDevice(
      torch::from_blob(const_cast<uint8_t*>(samples.counted.data()) + rows.begin * time,
                       {rows.size(), time}, torch::kByte));
  // Not in place: of a single row, inputs and targets are views of the samples.
  batch.targets = batch.targets.masked_fill(counted.eq(0), kIgnoredTarget);
  return batch;
}

TokenBatch MadeUpTokenBatch(int64_t rows, int64_t sequence_length, torch::Device device) {
  const auto ids = torch::TensorOptions().dtype(torch::kInt64).device(device);
  return {
      torch::zeros({rows, sequence_length}, ids), torch::zeros({rows, sequence_length}, ids), {}};
}

DropoutKeys MakeDropoutKeys(const v1::JobSpec& spec, int64_t step, const Samples& samples,
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
