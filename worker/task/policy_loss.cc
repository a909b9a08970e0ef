#include "worker/task/policy_loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace espalier {
namespace {

using torch::Tensor;

// Beside a deviation, so that it may be 0.
constexpr double kLeastDeviation = 1e-4;
// Of two log-probabilities: e^20 is far beyond all clips.
constexpr double kFarthest = 20;

double Mean(absl::Span<const double> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum / static_cast<double>(values.size());
}

double Deviation(absl::Span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Tensor Bounded(const Tensor& difference) { return difference.clamp(-kFarthest, kFarthest); }

}  // namespace

absl::StatusOr<AdvantageScale> ParseAdvantageScale(absl::string_view text) {
  if (text == "group") return AdvantageScale::kGroup;
  if (text == "batch") return AdvantageScale::kBatch;
  if (text == "none") return AdvantageScale::kNone;
  return absl::InvalidArgumentError(
      absl::StrCat("train.grpo.scale is '", text, "'; allowed: group, batch, none"));
}

absl::StatusOr<Aggregation> ParseAggregation(absl::string_view text) {
  if (text == "dapo") return Aggregation::kDapo;
  if (text == "grpo") return Aggregation::kGrpo;
  if (text == "dr_grpo") return Aggregation::kDrGrpo;
  if (text == "bnpo") return Aggregation::kBnpo;
  return absl::InvalidArgumentError(
      absl::StrCat("train.grpo.aggregation is '", text, "'; allowed: dapo, grpo, dr_grpo, bnpo"));
}

namespace {

// The same parts of a reward added in another order differ in the last digits, which are no
// advantage.
bool AreAlike(absl::Span<const double> rewards) {
  const auto [least, most] = std::minmax_element(rewards.begin(), rewards.end());
  return *most - *least <= 1e-9 * std::max({1.0, std::abs(*least), std::abs(*most)});
}

}  // namespace

Advantages AdvantagesOf(absl::Span<const double> rewards, int64_t group, AdvantageScale scale) {
  ESPALIER_CHECK(group > 0 && rewards.size() % static_cast<size_t>(group) == 0,
                 "rewards are of whole groups");
  Advantages made;
  const auto size = static_cast<size_t>(group);
  const double of_batch = Deviation(rewards);
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const absl::Span<const double> own = rewards.subspan(begin, size);
    const double deviation = Deviation(own), mean = Mean(own);
    made.mean_deviation += deviation;
    const bool alike = AreAlike(own);
    made.zero_groups += alike ? 1 : 0;
    const double divisor = scale == AdvantageScale::kGroup   ? deviation + kLeastDeviation
                           : scale == AdvantageScale::kBatch ? of_batch + kLeastDeviation
                                                             : 1;
    for (const double reward : own) made.of.push_back(alike ? 0 : (reward - mean) / divisor);
  }
  made.mean_deviation *=
      static_cast<double>(size) / static_cast<double>(std::max<size_t>(rewards.size(), 1));
  return made;
}

std::vector<double> TokenWeights(Aggregation aggregation, absl::Span<const int64_t> tokens,
                                 int64_t cap) {
  const auto all = static_cast<double>(
      std::max<int64_t>(1, std::accumulate(tokens.begin(), tokens.end(), int64_t{0})));
  const auto rows = static_cast<double>(tokens.size());
  std::vector<double> weights;
  for (const int64_t own : tokens) {
    switch (aggregation) {
      case Aggregation::kDapo:
        weights.push_back(1);
        break;
      case Aggregation::kGrpo:
        weights.push_back(1 / static_cast<double>(std::max<int64_t>(1, own)));
        break;
      case Aggregation::kDrGrpo:
        weights.push_back(1 / static_cast<double>(cap));
        break;
      case Aggregation::kBnpo:
        weights.push_back(rows / all);
        break;
    }
  }
  return weights;
}

RowLoss::Terms PolicyTerms(const Tensor& log_p, const PolicyRows& rows,
                           const PolicyLimits& limits) {
  const Tensor advantage = rows.advantage.to(log_p.scalar_type());
  Tensor loss, derivative;
  if (rows.old.defined()) {
    const Tensor ratio = Bounded(log_p - rows.old.to(log_p.scalar_type())).exp();
    const Tensor whole = ratio * advantage;
    const Tensor within = ratio.clamp(1 - limits.clip_low, 1 + limits.clip_high) * advantage;
    loss = torch::minimum(whole, within).neg();
    derivative = whole.neg().masked_fill(whole > within, 0);
  } else {  // the ratio is 1, and follows log p
    loss = advantage.neg();
    derivative = loss;
  }
  if (!rows.reference.defined()) return {loss, derivative};
  const Tensor d = Bounded(rows.reference.to(log_p.scalar_type()) - log_p), e = d.expm1();
  return {loss + (e - d) * limits.kl, derivative - e * limits.kl};
}

bool IsClipped(double log_ratio, double advantage, const PolicyLimits& limits) {
  const double ratio = std::exp(std::clamp(log_ratio, -kFarthest, kFarthest));
  const double within = std::clamp(ratio, 1 - limits.clip_low, 1 + limits.clip_high);
  return ratio * advantage > within * advantage;
}

double Divergence(double d) {
  const double bounded = std::clamp(d, -kFarthest, kFarthest);
  return std::expm1(bounded) - bounded;
}

}  // namespace espalier
