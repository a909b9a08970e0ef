#include "worker/generation/recursive_generation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// The logits of all places, [T, V].
Tensor LogitsOf(const RecursiveModel& model, const std::vector<int32_t>& ids) {
  const Tensor row = torch::tensor(ids, torch::kInt).to(torch::kLong).unsqueeze(0);
  const Tensor on_device = row.to(model.device());
  RecursiveModel::State state = model.Begin(1, on_device.size(1));
  for (int64_t step = 0; step < model.recursion().halt_max_steps; ++step) {
    state = model.Think(on_device, state);
  }
  return model.Logits(state.high)[0];
}

// The next id; none: the logits are no numbers.
std::optional<int32_t> Next(const RecursiveModel& model, const std::vector<int32_t>& ids,
                            Sampler& sampler) {
  const Tensor last = LogitsOf(model, ids)[static_cast<int64_t>(ids.size()) - 1];
  const Tensor logits = last.to(torch::kFloat).cpu().contiguous();
  return sampler.Next({logits.data_ptr<float>(), static_cast<size_t>(logits.numel())});
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> Generate(const RecursiveModel& model, Sequence sequence) {
  RETURN_IF_ERROR(CheckSequence(sequence, model.config(), model.config().max_position_embeddings));
  if (!model.recursion().causal) {
    return absl::InvalidArgumentError(
        "the model answers puzzles (config.json: causal is false) and continues no text");
  }
  std::vector<int32_t> ids = sequence.prompt, made;
  Sampler sampler(sequence.sample, sequence.seed, sequence.prompt);
  absl::Status outcome = absl::OkStatus();
  RETURN_IF_ERROR(CatchTorch("generating", [&] {
    torch::NoGradGuard no_grad;
    while (static_cast<int64_t>(made.size()) < sequence.max_new_tokens) {
      const std::optional<int32_t> id = Next(model, ids, sampler);
      if (!id) {
        outcome = NotNumbers();
        return;
      }
      const auto& stop = sequence.stop_ids;
      if (std::find(stop.begin(), stop.end(), *id) != stop.end()) return;
      ids.push_back(*id);
      made.push_back(*id);
      if (sequence.on_token && !sequence.on_token(*id)) return;
    }
  }));
  RETURN_IF_ERROR(outcome);
  return made;
}

absl::StatusOr<std::vector<int32_t>> Answer(const RecursiveModel& model,
                                            const std::vector<int32_t>& puzzle,
                                            int32_t end_of_text) {
  RETURN_IF_ERROR(CheckSequence({.prompt = puzzle, .max_new_tokens = 0}, model.config(),
                                model.config().max_position_embeddings));
  if (model.recursion().causal) {
    return absl::InvalidArgumentError(
        "the model continues text (config.json: causal is true) and answers no puzzles");
  }
  std::vector<int32_t> answer;
  RETURN_IF_ERROR(CatchTorch("answering", [&] {
    torch::NoGradGuard no_grad;
    std::vector<int32_t> row = puzzle;
    row.resize(static_cast<size_t>(model.config().max_position_embeddings), end_of_text);
    const Tensor best = LogitsOf(model, row).argmax(1).to(torch::kInt).cpu().contiguous();
    answer.assign(best.data_ptr<int32_t>(), best.data_ptr<int32_t>() + puzzle.size());
  }));
  return answer;
}

}  // namespace espalier
