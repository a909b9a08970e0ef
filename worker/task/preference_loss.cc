#include "worker/task/preference_loss.h"

namespace espalier {
namespace {

using torch::Tensor;

// log(1 + e^x), by an exponential that is 1 at most.
Tensor Softplus(const Tensor& x) { return x.clamp_min(0) + x.abs().neg().exp().log1p(); }

}  // namespace

PairRewards RewardsOf(const Tensor& log_p, const Tensor& reference, const Tensor& sides,
                      double beta) {
  const Tensor gains = (log_p - reference) * beta;  // token by token, before sums round them
  return {(gains * sides.clamp_min(0)).sum(1), (gains * sides.neg().clamp_min(0)).sum(1)};
}

PairTerms PreferenceTerms(const Tensor& margin, double label_smoothing) {
  const Tensor loss = Softplus(margin.neg()), other = Softplus(margin);
  const double s = label_smoothing;
  // d/dm of -log sigmoid(m) is sigmoid(m) - 1, and of -log sigmoid(-m) sigmoid(m).
  return {loss * (1 - s) + other * s, margin.sigmoid() * s - margin.neg().sigmoid() * (1 - s)};
}

PairTerms OfTargets(const PairTerms& pairs, const Tensor& sides, double beta) {
  const Tensor counted = sides.abs();
  const Tensor share = pairs.loss / counted.sum(1);
  return {(counted * share.unsqueeze(1)).flatten(),
          (sides * (pairs.derivative * beta).unsqueeze(1)).flatten()};
}

std::array<double, kPreferenceFigures.size()> PreferenceSums(
    absl::Span<const PreferenceSlot> slots) {
  std::array<double, kPreferenceFigures.size()> sums = {};
  for (const PreferenceSlot& slot : slots) {
    if (slot.pairs == 0) continue;
    sums[0] += slot.chosen > slot.rejected ? 1 : 0;
    sums[1] += slot.chosen - slot.rejected;
    sums[2] += slot.chosen;
    sums[3] += slot.rejected;
  }
  return sums;
}

}  // namespace espalier
