#include "coordinator/core/figures.h"

#include <algorithm>

namespace espalier {
namespace {

// Weight of the newest step: a moving average over about the last 20.
constexpr double kWeight = 0.1;

}  // namespace

void Figures::Add(const StepFigures& step) {
  if (step.step_seconds <= 0) return;
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(++averaged_));
  average_step_seconds_ += weight * (step.step_seconds - average_step_seconds_);
  average_tokens_ += weight * (static_cast<double>(step.tokens) - average_tokens_);
}

double Figures::tokens_per_second() const {
  return average_step_seconds_ > 0 ? average_tokens_ / average_step_seconds_ : 0;
}

std::optional<double> Figures::EtaSeconds(Step committed, Step total) const {
  if (average_step_seconds_ <= 0) return std::nullopt;
  const auto left = std::max<int64_t>(0, total.value() - committed.value());
  return static_cast<double>(left) * average_step_seconds_;
}

}  // namespace espalier
