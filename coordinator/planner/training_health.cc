#include "coordinator/planner/training_health.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {
namespace {

// A median of fewer norms says little, and a mean of fewer steps.
constexpr size_t kLeastNorms = 20;
constexpr int64_t kLeastTimed = 40;
// The window slides, so that chance has many tries: a rise is certain when it is so many standard
// errors, in so many steps in a row.
constexpr double kCertain = 4;
constexpr int64_t kRisesInARow = 20;
// The newest step's part in the mean of the recent ones: of 20, or of so much time where steps are
// short; how much longer the usual ones last; and what a stall of one step counts at most.
constexpr double kRecentWeight = 0.1;
constexpr double kRecentSeconds = 30;
constexpr double kUsualOverRecent = 25;
constexpr double kLongestOverUsual = 4;
// A warning lasts so long at least: alerts look at it once in a while.
constexpr double kLeastSeconds = 60;

void Keep(std::deque<double>& window, double value, size_t most) {
  window.push_back(value);
  if (window.size() > most) window.pop_front();
}

double MedianOfAllButTheLast(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end() - 1);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

// Of the noise in the values: their smooth course leaves little between neighbours.
double SpreadOf(const std::deque<double>& values) {
  double squares = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const double apart = values[i] - values[i - 1];
    squares += apart * apart;
  }
  return std::sqrt(squares / (2 * static_cast<double>(values.size() - 1)));
}

struct Rise {
  double rise = 0;   // of the line through the values, from its beginning to its end
  double error = 0;  // its standard error
};

// Least squares over the places of the values, from -1/2 to 1/2.
Rise RiseOf(const std::deque<double>& values) {
  const auto n = static_cast<double>(values.size());
  const auto place = [&](size_t i) { return static_cast<double>(i) / (n - 1) - 0.5; };
  double mean = 0;
  for (const double value : values) mean += value / n;
  double across = 0, squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    across += place(i) * (values[i] - mean);
    squares += place(i) * place(i);
  }
  Rise line{.rise = across / squares};
  double rest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = values[i] - mean - line.rise * place(i);
    rest += off * off;
  }
  line.error = std::sqrt(rest / (n - 2) / squares);
  return line;
}

}  // namespace

absl::string_view TrainingHealth::Name(Rule rule) {
  constexpr absl::string_view kNames[kRules] = {"loss_spread", "loss_rise", "norm_spike",
                                                "slow_down"};
  return kNames[rule];
}

void TrainingHealth::Measure(const StepFigures& step) {
  // The first one of a generation also finds the size of a micro-batch.
  if (step.step_seconds <= 0 || ++timed_ == 1) return;
  const auto seen = static_cast<double>(timed_ - 1);
  const double usual = usual_seconds_ > 0 ? usual_seconds_ : step.step_seconds;
  const double seconds = std::min(step.step_seconds, kLongestOverUsual * usual);
  const double weight = std::min(kRecentWeight, usual / kRecentSeconds);
  recent_seconds_ += std::max(weight, 1 / seen) * (seconds - recent_seconds_);
  if (holds_[kSlowDown]) return;  // it is not what is usual
  usual_seconds_ += std::max(weight / kUsualOverRecent, 1 / seen) * (seconds - usual_seconds_);
}

TrainingHealth::Sight TrainingHealth::LookAtSpread(const v1::HealthSpec& limits) const {
  if (losses_.size() < kWindow) return {};
  const double spread = SpreadOf(losses_);
  return {
      spread > limits.warn_loss_spread(), [=, limit = limits.warn_loss_spread()] {
        return absl::StrFormat(
            "losses spread: by %.3g nats over the last %d steps (health.warn_loss_spread is %g)",
            spread, kWindow, limit);
      }};
}

TrainingHealth::Sight TrainingHealth::LookAtRise(const v1::HealthSpec& limits) {
  if (losses_.size() < kWindow) return {};
  const Rise line = RiseOf(losses_);
  const bool rises = line.rise > kCertain * line.error && line.rise > limits.warn_loss_rise();
  rises_in_a_row_ = rises ? rises_in_a_row_ + 1 : 0;
  return {rises && (holds_[kLossRise] || rises_in_a_row_ >= kRisesInARow),
          [=, limit = limits.warn_loss_rise()] {
            return absl::StrFormat(
                "the loss rises: by %.3g nats over the last %d steps (health.warn_loss_rise is %g)",
                line.rise, kWindow, limit);
          }};
}

TrainingHealth::Sight TrainingHealth::LookAtNorm(const v1::HealthSpec& limits) const {
  if (norms_.size() <= kLeastNorms) return {};
  const double median = MedianOfAllButTheLast(norms_);
  return {norms_.back() > limits.warn_norm_spike() * median,
          [=, norm = norms_.back(), limit = limits.warn_norm_spike()] {
            return absl::StrFormat(
                "a gradient of norm %.3g, where the median of the last steps is %.3g "
                "(health.warn_norm_spike is %g)",
                norm, median, limit);
          }};
}

TrainingHealth::Sight TrainingHealth::LookAtSpeed(const v1::HealthSpec& limits) const {
  if (timed_ < kLeastTimed) return {};
  return {recent_seconds_ > usual_seconds_ / (1 - limits.warn_slow_down()),
          [recent = recent_seconds_, usual = usual_seconds_, limit = limits.warn_slow_down()] {
            return absl::StrFormat(
                "steps are slow: %.3g s, where %.3g s is usual (health.warn_slow_down is %g)",
                recent, usual, limit);
          }};
}

std::vector<std::string> TrainingHealth::Add(const v1::HealthSpec& limits,
                                             const StepFigures& step) {
  if (!step.skipped && std::isfinite(step.loss) && std::isfinite(step.gradient_norm)) {
    Keep(losses_, step.loss, kWindow);
    Keep(norms_, step.gradient_norm, kWindow);
  }
  Measure(step);
  std::vector<std::string> news;
  const auto note = [&](Rule rule, double limit, const Sight& sight) {
    if (limit == 0) return;
    Calm& calm = calm_[rule];
    calm = sight.wrong ? Calm{} : Calm{calm.steps + 1, calm.seconds + step.step_seconds};
    if (sight.wrong && !holds_[rule]) news.push_back(absl::StrCat("warning: ", sight.text()));
    if (sight.wrong) holds_[rule] = true;
    const bool over = calm.steps >= static_cast<int64_t>(kWindow) && calm.seconds >= kLeastSeconds;
    if (!holds_[rule] || !over) return;
    holds_[rule] = false;
    news.push_back(
        absl::StrCat("the warning (", Name(rule), ") is over, for ", calm.steps, " steps"));
  };
  note(kLossSpread, limits.warn_loss_spread(), LookAtSpread(limits));
  note(kLossRise, limits.warn_loss_rise(), LookAtRise(limits));
  note(kNormSpike, limits.warn_norm_spike(), LookAtNorm(limits));
  note(kSlowDown, limits.warn_slow_down(), LookAtSpeed(limits));
  return news;
}

void TrainingHealth::TakeUp(const std::vector<std::string>& warnings) {
  for (const Rule rule : kAll) {
    holds_[rule] = std::find(warnings.begin(), warnings.end(), Name(rule)) != warnings.end();
  }
}

std::vector<std::string> TrainingHealth::warnings() const {
  std::vector<std::string> names;
  for (const Rule rule : kAll) {
    if (holds_[rule]) names.emplace_back(Name(rule));
  }
  return names;
}

std::vector<std::string> TrainingHealth::End() {
  std::vector<std::string> news;
  for (const Rule rule : kAll) {
    if (!holds_[rule]) continue;
    news.push_back(absl::StrCat("the warning (", Name(rule), ") is over with the generation"));
  }
  *this = TrainingHealth();
  return news;
}

}  // namespace espalier
