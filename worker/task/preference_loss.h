// The mathematics of direct preference optimisation (Rafailov et al. 2023): what a pair of answers
// loses by how much likelier than before the model has made the chosen one and the rejected one,
// and what is told of it. Used by dpo.h. Pure: any thread.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Of each pair [rows], in nats times beta: how much likelier an answer is to the model than to the
// reference, log p less that of the reference, summed over its tokens.
struct PairRewards {
  torch::Tensor chosen, rejected;
  torch::Tensor Margin() const { return chosen - rejected; }
};
// Of log-probabilities of targets [rows, columns], by the model and by the reference. `sides`
// [rows, columns]: 1 where the target is of the chosen answer, -1 of the rejected one, else 0.
PairRewards RewardsOf(const torch::Tensor& log_p, const torch::Tensor& reference,
                      const torch::Tensor& sides, double beta);

// The loss of each pair, and its derivative by the margin. With s = label_smoothing (Mitchell 2023)
// and m the margin: -(1 - s) log sigmoid(m) - s log sigmoid(-m); s = 0 is equation 7 of the paper.
// Finite for any finite margin.
struct PairTerms {
  torch::Tensor loss, derivative;
};
PairTerms PreferenceTerms(const torch::Tensor& margin, double label_smoothing);

// The losses of rows of hidden values, one a target, that make up those of the pairs: of each
// target [rows * columns] a loss, which adds up to that of its pair, and the derivative of that by
// the target's log-probability.
PairTerms OfTargets(const PairTerms& pairs, const torch::Tensor& sides, double beta);

// What is told of the pair of a slot. Plain: it is a record of SlotStates. Zero: there was none.
struct PreferenceSlot {
  int64_t pairs = 0;  // 1
  double loss = 0;
  double chosen = 0;  // rewards (PairRewards)
  double rejected = 0;
};
// Figures of pairs, and their sums over slots that had one: pairs whose margin is above 0, margins,
// and the rewards that these lie between.
inline constexpr std::array<absl::string_view, 4> kPreferenceFigures = {
    "preference_accuracy", "preference_margin", "preference_chosen", "preference_rejected"};
std::array<double, kPreferenceFigures.size()> PreferenceSums(
    absl::Span<const PreferenceSlot> slots);

}  // namespace espalier
