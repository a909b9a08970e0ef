// RolloutSource without an exchange: each rank samples all completions itself, which on the CPU are
// the same, and rewards them by a function. Used by tests/worker/task and tests/worker/mac. One per
// rank.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "worker/generation/batch_generator.h"
#include "worker/rollout/rollout.h"

namespace espalier {

class FakeRollouts final : public RolloutSource {
 public:
  using Reward =
      std::function<double(const RolloutPrompt& prompt, const std::vector<int32_t>& ids)>;
  struct Options {
    int64_t max_new_tokens = 6;
    int32_t end_of_text = 49;
    Reward reward;
    std::function<void(const RolloutOrder& order)> on_order;  // may be null
    // Told what was sampled, and by which model; may be null.
    std::function<void(const Decoder& decoder, const RolloutOrder& order, const Rollouts& made)>
        on_made = nullptr;
  };
  explicit FakeRollouts(Options options) : options_(std::move(options)) {}

  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder, const RolloutOrder& order,
                                                 const RolloutAround& around) override {
    if (options_.on_order) options_.on_order(order);
    if (around.called_away && around.called_away()) return std::nullopt;
    if (around.begins) around.begins(RolloutPart::kSampling);
    const auto step = static_cast<uint64_t>(order.moment.step);
    std::vector<Sequence> sequences;
    for (const RolloutPrompt& prompt : order.prompts) {
      for (int64_t sample = 0; sample < order.samples; ++sample) {
        sequences.push_back(
            {.prompt = prompt.ids,
             .max_new_tokens = options_.max_new_tokens,
             .sample = order.sample,
             .seed = SampleSeed(SampleSeed(order.seed, step, 0), static_cast<uint64_t>(prompt.id),
                                static_cast<uint64_t>(sample)),
             .stop_ids = {options_.end_of_text}});
      }
    }
    ASSIGN_OR_RETURN(const std::vector<Continued> made, GenerateAll(decoder, sequences));
    Rollouts rollouts;
    for (size_t i = 0; i < made.size(); ++i) {
      Rollout one{.prompt = static_cast<int64_t>(i) / order.samples,
                  .sample = static_cast<int64_t>(i) % order.samples,
                  .ids = made[i].new_ids,
                  .text = {},
                  .stopped = made[i].end == SequenceEnd::kStopped,
                  .judgement = {}};
      if (one.stopped) one.ids.push_back(options_.end_of_text);
      const RolloutPrompt& prompt = order.prompts[static_cast<size_t>(one.prompt)];
      one.judgement.Add("correct", options_.reward(prompt, one.ids));
      if (one.judgement.total < 1) one.judgement.invalid = "it is not all right";
      rollouts.all.push_back(std::move(one));
    }
    if (around.done) around.done(RolloutPart::kSampling);
    if (options_.on_made) options_.on_made(decoder, order, rollouts);
    return rollouts;
  }

 private:
  const Options options_;
};

// The share of a completion that is odd where the prompt ends with an odd token, and else even.
inline double SameParity(const RolloutPrompt& prompt, const std::vector<int32_t>& ids) {
  double right = 0;
  for (const int32_t id : ids) right += (id - prompt.ids.back()) % 2 == 0 ? 1 : 0;
  return right / static_cast<double>(ids.size());
}

// Prompts of `least` to `least` + 3 tokens of a vocabulary of 50.
inline std::vector<RolloutPrompt> TinyPrompts(int64_t count, int32_t least = 2) {
  std::vector<RolloutPrompt> prompts;
  for (int32_t i = 0; i < count; ++i) {
    RolloutPrompt prompt{.id = i, .ids = {}, .record = "{}"};
    for (int32_t t = 0; t < least + i % 4; ++t) prompt.ids.push_back((i * 7 + t * 3) % 40);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace espalier
