// The mathematics of group relative policy optimisation (Shao et al. 2024): what a completion is
// worth beside the others of its prompt, what each of its tokens loses, and what losses are divided
// by. Used by grpo.h and grpo_practice.h. Pure: any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/ops/row_loss.h"
#include "worker/tensor/torch.h"

namespace espalier {

// What advantages are divided by: the standard deviation of the group's rewards, that of the whole
// batch, or nothing.
enum class AdvantageScale { kGroup, kBatch, kNone };
// "group", "batch" or "none".
absl::StatusOr<AdvantageScale> ParseAdvantageScale(absl::string_view text);

struct Advantages {
  std::vector<double> of;     // each completion
  int64_t zero_groups = 0;    // whose rewards are all the same: they teach nothing
  double mean_deviation = 0;  // of the groups' standard deviations
};
// Of rewards, `group` by `group`, which divides them: reward less the mean of the group, divided by
// the deviation + 1e-4. Deviations are those of samples (n - 1). Exactly 0 in a group of equals.
Advantages AdvantagesOf(absl::Span<const double> rewards, int64_t group, AdvantageScale scale);

// What the token losses of a step are divided by (see GrpoSpec::aggregation).
enum class Aggregation { kDapo, kGrpo, kDrGrpo, kBnpo };
// "dapo", "grpo", "dr_grpo" or "bnpo".
absl::StatusOr<Aggregation> ParseAggregation(absl::string_view text);

// The factors of the token losses of completions of so many tokens, which share a pass; what
// divides the sum of a step besides is its tokens with kDapo, else its completions. So of kBnpo a
// pass counts as much as it has completions. `cap`: rollout.max_new_tokens.
std::vector<double> TokenWeights(Aggregation aggregation, absl::Span<const int64_t> tokens,
                                 int64_t cap);

// How far a policy may go from the one that sampled, and from the one that it began as.
struct PolicyLimits {
  double clip_low = 0.2;
  double clip_high = 0.2;
  double kl = 0;  // weight of the divergence; 0: there is no reference
};
// Of each row [N] fp32: the advantage of its completion, and the log-probabilities of the target by
// the policy that sampled, and by the reference. Undefined: those of the policy itself; none.
struct PolicyRows {
  torch::Tensor advantage, old, reference;
};
// -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl (exp(d) - d - 1), r = exp(log p - old),
// d = reference - log p (Schulman et al. 2017, eq. 7; Schulman 2020, k3), and its derivative.
// Differences of log-probabilities count up to 20 either way, so that all is finite.
RowLoss::Terms PolicyTerms(const torch::Tensor& log_p, const PolicyRows& rows,
                           const PolicyLimits& limits);

// For figures, of one token: whether its advantage moves nothing, being clipped, by log p - old;
// and exp(d) - d - 1.
bool IsClipped(double log_ratio, double advantage, const PolicyLimits& limits);
double Divergence(double d);

}  // namespace espalier
