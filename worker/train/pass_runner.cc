#include "worker/train/pass_runner.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Of what LibTorch has from the device: in no tensor.
int64_t FreeBytes(torch::Device device) {
  const std::optional<DeviceMemory> memory = ReadDeviceMemory(device);
  return memory ? memory->free_bytes : 0;
}

}  // namespace

PassRunner::PassRunner(const Task& task, const Model& model, const Parameters& parameters)
    : task_(task), model_(model), leaves_(parameters.GradientLeaves()) {}

Tensor PassRunner::Compute(const TokenBatch& batch, const PassInputs& inputs,
                           const Tensor& loss_scale) const {
  const Tensor loss = task_.LossSum(model_, batch, inputs);
  // Done again after memory ran out at its very end, a pass may have nothing left to add.
  if (loss.requires_grad()) loss.backward(loss_scale);
  return loss.detach();
}

// Whether each leaf takes a gradient: a pass that is done again leaves some out.
std::vector<bool> PassRunner::Receives() const {
  std::vector<bool> receives;
  receives.reserve(leaves_.size());
  for (const Tensor& leaf : leaves_) receives.push_back(leaf.requires_grad());
  return receives;
}

// Null where the pass is not one that was recorded.
PassRunner::Recording* PassRunner::RecordingFor(const TokenBatch& batch, const PassInputs& inputs) {
  if (inputs.gradients_final || inputs.lookup.rows.defined() || batch.weights.defined() ||
      !batch.results.empty()) {
    return nullptr;
  }
  const auto it = recordings_.find(batch.inputs.size(0));
  const bool same = it != recordings_.end() && it->second.receives == Receives() &&
                    it->second.batch.inputs.sizes() == batch.inputs.sizes() &&
                    it->second.batch.shared.begins.defined() == batch.shared.begins.defined();
  return same ? &it->second : nullptr;
}

Tensor PassRunner::Run(const TokenBatch& batch, const PassInputs& inputs, double loss_scale) {
  if (Recording* recording = RecordingFor(batch, inputs)) {
    return Replay(*recording, batch, inputs.dropout, loss_scale);
  }
  const auto options = torch::TensorOptions().dtype(torch::kFloat).device(model_.device());
  return Compute(batch, inputs, torch::full({}, loss_scale, options));
}

Tensor PassRunner::Replay(Recording& recording, const TokenBatch& batch, const DropoutKeys& dropout,
                          double loss_scale) const {
  recording.batch.inputs.copy_(batch.inputs);
  recording.batch.targets.copy_(batch.targets);
  if (batch.shared.begins.defined()) recording.batch.shared.begins.copy_(batch.shared.begins);
  if (dropout.of_row.defined()) recording.dropout.of_row.copy_(dropout.of_row);
  if (dropout.positions.defined()) recording.dropout.positions.copy_(dropout.positions);
  recording.loss_scale.fill_(loss_scale);
  // Before the launch, which nothing may follow that could run out of memory: the pass counts then.
  Tensor loss = torch::empty_like(recording.loss);
  recording.graph->Launch();
  return loss.copy_(recording.loss);
}

bool PassRunner::CanRecord() const { return model_.device().is_cuda() && cuda::CanRecord(); }

PassRunner::Recording PassRunner::MakeRecording(int64_t size, int64_t time,
                                                const DropoutKeys& rates) const {
  const auto numbers = torch::TensorOptions().dtype(torch::kInt64).device(model_.device());
  Recording recording;
  recording.batch = task_.MadeUpBatch(size, time, model_.device());
  recording.dropout = MadeUpDropoutKeys(rates, recording.batch);
  recording.loss_scale = torch::ones({}, numbers.dtype(torch::kFloat));
  recording.loss = torch::zeros({}, numbers.dtype(torch::kFloat));
  recording.receives = Receives();
  return recording;
}

absl::Status PassRunner::Record(std::vector<int64_t> sizes, int64_t time,
                                const DropoutKeys& rates) {
  Forget();
  const bool alike = CanRecord() && task_.MadeUpBatch(1, 1, model_.device()).results.empty();
  if (!alike) return absl::OkStatus();
  // The largest first, so that the others find room in its memory.
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  const absl::Status status = CatchTorch("recording a pass", [&] {
    const torch::Device device = model_.device();
    FreeDeviceCache(device);
    const int64_t before = FreeBytes(device);
    const cuda::Graph* first = nullptr;
    for (const int64_t size : sizes) {
      Recording recording = MakeRecording(size, time, rates);
      recording.graph = cuda::Record(
          device,
          [&] {
            recording.loss.copy_(
                Compute(recording.batch, {.dropout = recording.dropout}, recording.loss_scale));
          },
          first);
      recording.rope = model_.rope();
      if (first == nullptr) first = recording.graph.get();
      recordings_.emplace(size, std::move(recording));
    }
    recorded_bytes_ = FreeBytes(device) - before;
  });
  if (!status.ok()) Forget();
  return status;
}

void PassRunner::Forget() {
  recorded_bytes_ = 0;
  if (recordings_.empty()) return;
  cuda::Synchronize();
  recordings_.clear();
}

}  // namespace espalier
