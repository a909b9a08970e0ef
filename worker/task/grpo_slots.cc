#include "worker/task/grpo_slots.h"

#include <algorithm>
#include <cstdint>

#include "worker/task/policy_loss.h"

namespace espalier {
namespace {

constexpr std::array<absl::string_view, kRewardParts.size()> kPartFigures = {
    "reward_format", "reward_feedback",    "reward_information", "reward_accuracy",
    "reward_repeat", "reward_consistency", "reward_solved",      "reward_correct"};

}  // namespace

GrpoSlot SlotOf(const Rollout& rollout, int64_t prompt, int64_t occurrence, double advantage) {
  GrpoSlot slot{.prompt = prompt,
                .sample = rollout.sample,
                .tokens = static_cast<int64_t>(rollout.ids.size()),
                .stopped = rollout.stopped ? 1 : 0,
                .accepted = rollout.judgement.accepted() ? 1 : 0,
                .reward = rollout.judgement.total,
                .advantage = advantage,
                .occurrence = static_cast<int32_t>(occurrence)};
  for (const RewardComponent& one : rollout.judgement.components) {
    const auto it = std::find(kRewardParts.begin(), kRewardParts.end(), one.name);
    if (it == kRewardParts.end()) continue;
    const auto place = static_cast<size_t>(it - kRewardParts.begin());
    slot.parts[place] = static_cast<float>(one.value);
    slot.has_parts |= 1U << place;
  }
  return slot;
}

int64_t SampledAt(const v1::TrainSpec& train, int64_t step) {
  return step - step % std::max<int64_t>(1, train.grpo().updates_per_rollout());
}

bool AnyAdvantage(absl::Span<const GrpoSlot> slots) {
  return std::any_of(slots.begin(), slots.end(),
                     [](const GrpoSlot& slot) { return slot.advantage != 0; });
}

std::vector<TaskFigure> FiguresOf(absl::Span<const GrpoSlot> slots, int64_t group, bool reference) {
  const auto sum = [&](const auto& of) {
    double total = 0;
    for (const GrpoSlot& slot : slots) total += static_cast<double>(of(slot));
    return total;
  };
  const double tokens = sum([](const GrpoSlot& slot) { return slot.tokens; });
  if (tokens == 0) return {};
  const auto completions = static_cast<double>(slots.size());
  std::vector<double> rewards;
  for (const GrpoSlot& slot : slots) rewards.push_back(slot.reward);
  const Advantages groups = AdvantagesOf(rewards, group, AdvantageScale::kNone);
  std::vector<TaskFigure> figures = {
      {"reward", sum([](const GrpoSlot& slot) { return slot.reward; }) / completions},
      {"reward_std", groups.mean_deviation},
      {"zero_advantage_groups", static_cast<double>(groups.zero_groups)},
      {"accepted", sum([](const GrpoSlot& slot) { return slot.accepted; }) / completions},
      {"stopped", sum([](const GrpoSlot& slot) { return slot.stopped; }) / completions},
      {"completion_tokens", tokens / completions}};
  const double seen = sum([](const GrpoSlot& slot) { return slot.updates > 0 ? slot.tokens : 0; });
  const auto of_seen = [&](absl::string_view name, float GrpoSlot::*what) {
    if (seen == 0) return;
    figures.push_back({name, sum([what](const GrpoSlot& slot) { return slot.*what; }) / seen});
  };
  of_seen("clip_fraction", &GrpoSlot::clipped);
  of_seen("entropy", &GrpoSlot::surprise);
  if (reference) of_seen("kl", &GrpoSlot::kl);
  for (size_t i = 0; i < kRewardParts.size(); ++i) {
    const double has = sum([i](const GrpoSlot& slot) { return slot.has_parts >> i & 1U; });
    if (has == 0) continue;
    figures.push_back(
        {kPartFigures[i], sum([i](const GrpoSlot& slot) { return slot.parts[i]; }) / has});
  }
  return figures;
}

}  // namespace espalier
