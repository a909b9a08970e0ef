#include "coordinator/core/figures.h"

#include <algorithm>

namespace espalier {
namespace {

// Weight of the newest step: a moving average over about the last 20.
constexpr double kWeight = 0.1;

}  // namespace

bool Figures::Add(const StepFigures& step) {
  if (last_ && step.step <= last_->step) return false;
  last_ = step;
  if (step.step_seconds <= 0) return true;
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(++averaged_));
  average_step_seconds_ += weight * (step.step_seconds - average_step_seconds_);
  average_tokens_ += weight * (static_cast<double>(step.tokens) - average_tokens_);
  return true;
}

void Figures::Restart(Step next) {
  averaged_ = 0;
  average_step_seconds_ = 0;
  average_tokens_ = 0;
  if (last_ && last_->step >= next) last_->step = Step(next.value() - 1);
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
