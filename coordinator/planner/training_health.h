// TrainingHealth: whether the steps of a generation look as they should: losses that spread or
// rise, gradients that leap, and steps that turn slow, as where a machine gets hot. Warns, decides
// nothing; the limits are those of HealthSpec. Used by coordinator/core and coordinator/service.
// Plain value.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/planner/figures.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

class TrainingHealth {
 public:
  enum Rule { kLossSpread, kLossRise, kNormSpike, kSlowDown };
  static constexpr std::array kAll = {kLossSpread, kLossRise, kNormSpike, kSlowDown};
  static constexpr size_t kRules = kAll.size();
  // "loss_spread", as in metrics.
  static absl::string_view Name(Rule rule);
  // Of the newest steps; what the rules of losses and norms look at.
  static constexpr size_t kWindow = 100;

  // To be called once for each step, in order. What has begun or ended to be wrong with it, for
  // people: "warning: the loss rises: by 0.31 nats over the last 100 steps ...". It has ended when
  // the rule was kept for a window of steps and a minute. Skipped steps count for the speed alone.
  std::vector<std::string> Add(const v1::HealthSpec& limits, const StepFigures& step);
  // Another generation is looked at from here on, afresh. What was wrong until now, for people.
  std::vector<std::string> End();
  // An earlier espalierd had told of these, by name; they are over when the rules were kept.
  void TakeUp(const std::vector<std::string>& warnings);
  // Those that hold at present, by name.
  std::vector<std::string> warnings() const;
  // Holds at present.
  bool holds(Rule rule) const { return holds_[rule]; }

 private:
  // What a rule sees: whether it is broken, and what to say of it.
  struct Sight {
    bool wrong = false;
    std::function<std::string()> text;
  };
  // Since the rule was broken last.
  struct Calm {
    int64_t steps = 0;
    double seconds = 0;
  };
  void Measure(const StepFigures& step);
  Sight LookAtSpread(const v1::HealthSpec& limits) const;
  Sight LookAtRise(const v1::HealthSpec& limits);
  Sight LookAtNorm(const v1::HealthSpec& limits) const;
  Sight LookAtSpeed(const v1::HealthSpec& limits) const;

  std::deque<double> losses_;
  std::deque<double> norms_;
  int64_t rises_in_a_row_ = 0;
  // Moving averages of the seconds of a step, after the first of the generation; the usual ones
  // stay as they are while steps are slow.
  double recent_seconds_ = 0;
  double usual_seconds_ = 0;
  int64_t timed_ = 0;
  std::array<bool, kRules> holds_{};
  std::array<Calm, kRules> calm_{};
};

}  // namespace espalier
