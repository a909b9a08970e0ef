#include "worker/generation/step_runner.h"

#include "worker/kernels/parallel.h"
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

StepRunner::Computed StepRunner::Compute(const Tensor& ids, const Tensor& by,
                                         KeyValueCache& cache) const {
  const Tensor logits = decoder_->NextLogits(ids, cache);
  return {logits, by.defined() ? cuda::DrawIds(logits, by) : Tensor()};
}

StepRunner::Computed StepRunner::Step(const std::vector<int64_t>& ids, const Tensor& by,
                                      KeyValueCache& cache) {
  const auto rows = static_cast<int64_t>(ids.size());
  cache.BeginStep(rows);
  const torch::Device device = decoder_->device();
  if (!CanRecord(cache)) {
    return Compute(cache.OnDevice(ids), by.defined() ? by.to(device) : by, cache);
  }
  const Tensor given = torch::tensor(ids, torch::kLong);
  Recording& recording = recordings_[rows];
  if (!recording.ids.defined()) {
    recording.ids = given.to(device);
    recording.by = torch::zeros({rows, 2}, recording.ids.options().dtype(torch::kDouble));
  }
  recording.ids.copy_(given);
  if (by.defined()) recording.by.copy_(by);
  if (++recording.steps == kStepsBefore) Record(recording, cache);
  if (!recording.graph) return Compute(recording.ids, recording.by, cache);
  recording.graph->Launch();
  cache.Finish();
  return {recording.logits, recording.drawn};
}

Tensor StepRunner::NextLogits(const std::vector<int64_t>& ids, KeyValueCache& cache) {
  return OnHost(Step(ids, {}, cache).logits.to(torch::kFloat));
}

std::vector<std::optional<int32_t>> StepRunner::NextIds(const std::vector<int64_t>& ids,
                                                        const std::vector<Sampler*>& samplers,
                                                        KeyValueCache& cache) {
  const auto rows = static_cast<int64_t>(ids.size());
  const bool draws = decoder_->device().is_cuda() && cuda::Available();
  const Tensor by = draws ? torch::zeros({rows, 2}, torch::kDouble) : Tensor();
  std::vector<size_t> drawn_rows, on_host;
  for (size_t row = 0; row < samplers.size(); ++row) {
    const std::optional<Sampler::Plain> plain = draws ? samplers[row]->NextPlain() : std::nullopt;
    if (!plain) {
      on_host.push_back(row);
      continue;
    }
    drawn_rows.push_back(row);
    double* to = by.data_ptr<double>() + 2 * row;
    to[0] = plain->temperature;
    to[1] = plain->falls_on;
  }
  const Computed computed = Step(ids, by, cache);
  std::vector<std::optional<int32_t>> chosen(samplers.size());
  if (!drawn_rows.empty()) {
    const Tensor drawn = computed.drawn.cpu();
    for (const size_t row : drawn_rows) {
      samplers[row]->TookPlain();
      const int64_t id = drawn.data_ptr<int64_t>()[row];
      if (id >= 0) chosen[row] = static_cast<int32_t>(id);
    }
  }
  if (on_host.empty()) return chosen;
  const Tensor logits = OnHost(computed.logits.to(torch::kFloat));
  const auto size = static_cast<size_t>(logits.size(1));
  cpu::ParallelForUneven(static_cast<int64_t>(on_host.size()), [&](int64_t i) {
    const size_t row = on_host[static_cast<size_t>(i)];
    chosen[row] = samplers[row]->Next({logits.data_ptr<float>() + row * size, size});
  });
  return chosen;
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
        decoder_->device(),
        [&] {
          const Computed computed = Compute(recording.ids, recording.by, cache);
          recording.logits = computed.logits;
          recording.drawn = computed.drawn;
        },
        shared);
    recording.rope = decoder_->rope();
  });
  if (cache.length(0) != length) cache.Undo();  // it was not executed
  if (status.ok()) return;
  recording = {.steps = recording.steps, .ids = recording.ids, .by = recording.by};
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
