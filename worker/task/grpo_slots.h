// What a slot of the global batch keeps of its completion, and the figures of a step, which follow
// from what all slots keep: every rank has that. A completion stays for all steps that learn from
// it, so that kills, plans and joins between them change nothing. Used by grpo.h and
// grpo_practice.h. Compute thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/observe/task_figures.h"
#include "espalier/v1/job.pb.h"
#include "worker/reward/verifier.h"
#include "worker/rollout/rollout.h"
#include "worker/state/slot_states.h"

namespace espalier {

// Parts of a reward that are shown as figures "reward_...": those of the verifiers that come with
// Espalier. What else a program tells counts in the total.
inline constexpr std::array<absl::string_view, 8> kRewardParts = {
    "format", "feedback", "information", "accuracy", "repeat", "consistency", "solved", "correct"};

// Zero: there is none.
struct GrpoSlot {
  int64_t prompt = 0;  // its number in the table
  int64_t sample = 0;  // of the prompt's
  int64_t tokens = 0;  // of the completion
  int32_t stopped = 0;
  int32_t accepted = 0;
  double reward = 0;
  double advantage = 0;
  std::array<float, kRewardParts.size()> parts = {};
  uint32_t has_parts = 0;  // bits, by kRewardParts
  int32_t updates = 0;     // steps that have learnt from it
  // Sums over its tokens: how many were clipped and the estimated divergence from the reference, in
  // the newest of those; and minus their log-probabilities in the first.
  float clipped = 0, kl = 0, surprise = 0;
  int32_t occurrence = 0;  // of the prompt in its step: one may be in it twice, at an epoch's end
};

// Of the prompt with that number, and which one of its step.
GrpoSlot SlotOf(const Rollout& rollout, int64_t prompt, int64_t occurrence, double advantage);

// The numbers that a slot keeps, each as many as a completion may have tokens: its ids, and the
// log-probabilities of its tokens by the policy that sampled, and by the reference where there is
// one.
struct GrpoNumbers {
  explicit GrpoNumbers(const v1::TrainSpec& train)
      : cap(train.rollout().max_new_tokens()), reference(train.grpo().kl() > 0) {}
  const int64_t cap;  // tokens
  const bool reference;
  int64_t size() const { return (reference ? 3 : 2) * cap; }
  float* ids(float* slot) const { return slot; }
  float* old(float* slot) const { return slot + cap; }
  float* of_reference(float* slot) const { return slot + 2 * cap; }
};

// The step at which the completions that `step` learns from are sampled. They are by the
// temperature, the seed and the rewards of that one, and what passes drop is its choice too: later
// updates compare with what its pass found.
int64_t SampledAt(const v1::TrainSpec& train, int64_t step);

// Whether a step has anything to learn from: some advantage is not 0.
bool AnyAdvantage(absl::Span<const GrpoSlot> slots);

// Means over completions: reward, accepted, stopped, completion_tokens; over those that have it,
// each part of the reward. Over groups of `group`: reward_std, zero_advantage_groups (how many).
// Over the tokens of completions that a pass has seen: entropy, as estimated by those that were
// sampled; clip_fraction; and kl where there is a reference. What nothing has is left out.
std::vector<TaskFigure> FiguresOf(absl::Span<const GrpoSlot> slots, int64_t group, bool reference);

}  // namespace espalier
