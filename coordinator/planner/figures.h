// Figures: what the steps of a job say about its speed and loss, for people and metrics; decides
// nothing. Kept by the core so that the CLI and the metrics read one place. Used by
// coordinator/core, coordinator/loop and coordinator/service. Plain value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/ids.h"

namespace espalier {

// One committed step as a rank saw it; the fields are those of worker.proto's StepReport that
// people look at.
struct StepFigures {
  // Number of the step, from 0.
  Step step;
  // Nats per token over the global batch.
  double loss = 0;
  // Loss tokens of the global batch.
  int64_t tokens = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  bool skipped = false;
  // Sequences the rank computed.
  int32_t shard = 0;
  double step_seconds = 0;
  // Of these, what it did not spend waiting for others.
  double own_seconds = 0;
  // Before it, beside these: sampling, and having completions judged.
  double practice_seconds = 0;
};

// What rank 0 said of the newest evaluation; the fields are those of worker.proto's
// EvaluationReport.
struct EvaluationRecord {
  // Committed steps at the time.
  Step step;
  // Mean loss per token on the validation split, in nats.
  double loss = 0;
  int64_t without_gain = 0;  // evaluations in a row
  int64_t reductions = 0;    // of the learning rate, on plateaus
  double rate_factor = 1;    // of the schedule's rate, by them
};

class Figures {
 public:
  // To be called once for each step. A new generation is measured afresh, by another Figures.
  void Add(const StepFigures& step) {
    if (step.step_seconds <= 0) return;
    const double seconds =
        step.step_seconds + step.practice_seconds + std::exchange(practice_seconds_, 0);
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(++averaged_));
    average_step_seconds_ += weight * (seconds - average_step_seconds_);
    average_tokens_ += weight * (static_cast<double>(step.tokens) - average_tokens_);
  }

  // What was told of it before the step was.
  void AddPractice(double seconds) { practice_seconds_ += std::max(0.0, seconds); }

  // Moving average over about the last 20 steps; 0 while unknown.
  double tokens_per_second() const {
    return average_step_seconds_ > 0 ? average_tokens_ / average_step_seconds_ : 0;
  }
  // Until `total` steps are committed, when `committed` are; absent while the speed is unknown.
  std::optional<double> EtaSeconds(Step committed, Step total) const {
    if (average_step_seconds_ <= 0) return std::nullopt;
    const auto left = std::max<int64_t>(0, total.value() - committed.value());
    return static_cast<double>(left) * average_step_seconds_;
  }

 private:
  // Of the newest step: an average over about the last 20.
  static constexpr double kWeight = 0.1;

  double average_step_seconds_ = 0;
  double average_tokens_ = 0;
  double practice_seconds_ = 0;  // before the next step
  int64_t averaged_ = 0;
};

}  // namespace espalier
