#include "worker/generation/step_runner.h"

#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Before a number of rows is recorded: rows come and go, and a recording costs some steps.
constexpr int64_t kStepsBefore = 4;

}  // namespace

bool StepRunner::CanRecord(const KeyValueCache& cache) const {
  const DecoderConfig& config = decoder_->config();
  return records_ && cuda::CanRecord() && decoder_->device().is_cuda() && cache.StepsAreAlike() &&
         config.architecture != Architecture::kGpt2 &&  // it checks positions in each step
         !RopeDependsOnLength(config, cache.size().positions);
}

Tensor StepRunner::Compute(const Tensor& ids, KeyValueCache& cache) const {
  return decoder_->NextLogits(ids, cache).to(torch::kFloat);
}

Tensor StepRunner::NextLogits(const std::vector<int64_t>& ids, KeyValueCache& cache) {
  const auto rows = static_cast<int64_t>(ids.size());
  const Tensor given = torch::tensor(ids, torch::kLong);
  cache.BeginStep(rows);
  if (!CanRecord(cache)) return OnHost(Compute(given.to(decoder_->device()), cache));
  Recording& recording = recordings_[rows];
  if (!recording.ids.defined()) recording.ids = given.to(decoder_->device());
  recording.ids.copy_(given);
  if (++recording.steps == kStepsBefore) Record(recording, cache);
  if (!recording.graph) return OnHost(Compute(recording.ids, cache));
  recording.graph->Launch();
  cache.Finish();
  return OnHost(recording.logits);
}

void StepRunner::Record(Recording& recording, KeyValueCache& cache) {
  const cuda::Graph* shared = nullptr;
  for (const auto& [rows, other] : recordings_) {
    if (other.graph) shared = other.graph.get();
  }
  const int64_t length = cache.length(0);
  const absl::Status status = CatchTorch("recording a step", [&] {
    torch::NoGradGuard no_grad;
    recording.graph = cuda::Record(
        decoder_->device(), [&] { recording.logits = Compute(recording.ids, cache); }, shared);
    recording.rope = decoder_->rope();
  });
  if (cache.length(0) != length) cache.Undo();  // it was not executed
  if (status.ok()) return;
  recording = {.steps = recording.steps, .ids = recording.ids};
  records_ = false;
}

Tensor StepRunner::OnHost(const Tensor& logits) {
  if (!logits.is_cuda()) return logits.to(torch::kCPU).contiguous();
  if (!host_.defined() || host_.numel() < logits.numel()) {
    host_ = torch::empty(logits.sizes(), torch::TensorOptions().pinned_memory(true));
  }
  Tensor to = host_.narrow(0, 0, logits.size(0));
  to.copy_(logits, /*non_blocking=*/true);
  cuda::Synchronize();
  return to;
}

}  // namespace espalier
