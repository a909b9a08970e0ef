#include "coordinator/planner/speed_model.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

// What a measurement weighs beside the next one.
constexpr double kForgetting = 0.9;
// What was known weighs so much after a turn.
constexpr double kKeptInTurn = 0.25;
// Weight of the newest distance in their mean.
constexpr double kDeviationWeight = 0.1;
// A measurement is far off beyond four deviations, within these bounds.
constexpr double kFarDeviations = 4;
constexpr double kFarLeast = 0.15;
constexpr double kFarMost = 0.5;
// Pulls the constant towards 0, as that part of a measurement that says it is: the line through
// numbers of sequences that hardly differ is not known otherwise.
constexpr double kPull = 0.002;
// Of the mean time for a sequence, the least that the slope can be.
constexpr double kLeastSlope = 0.02;
// Relative variance of numbers of sequences up to which they tell nothing of the constant.
constexpr double kSameNumbers = 1e-4;
// Of the mean step, what of a constant is rounding.
constexpr double kLeastConstant = 1e-6;
// No step is longer (30 years), no batch larger (job.proto).
constexpr double kLongest = 1e9;
constexpr int64_t kLargest = 1 << 20;

bool IsSum(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

SpeedModel::SpeedModel(const SpeedSums& sums) {
  const bool sound = IsSum(sums.nn) && IsSum(sums.nt) && IsSum(sums.deviation) &&
                     std::isfinite(sums.weight) && sums.weight > 0 && std::isfinite(sums.n) &&
                     sums.n > 0 && std::isfinite(sums.t) && sums.t > 0 && sums.measurements > 0;
  if (sound && sums.nn > 0) sums_ = sums;
}

void SpeedModel::Add(int64_t sequences, double seconds) {
  if (sequences < 1 || sequences > kLargest) return;
  if (!std::isfinite(seconds) || seconds <= 0 || seconds > kLongest) return;
  Measurement fresh{static_cast<double>(sequences), seconds, 1};
  if (!measured()) {
    Take(fresh);
    return;
  }
  fresh.ratio = seconds / Nearest(fresh);
  const double distance = std::abs(fresh.ratio - 1);
  const double far = std::clamp(kFarDeviations * sums_.deviation, kFarLeast, kFarMost);
  sums_.deviation += kDeviationWeight * (std::min(distance, far) - sums_.deviation);
  if (distance <= far) {
    odd_.reset();
    Take(fresh);
  } else if (odd_ && (odd_->ratio > 1) == (fresh.ratio > 1)) {
    Turn(*odd_, fresh);
    odd_.reset();
  } else {
    odd_ = fresh;
  }
}

// What is predicted. While the numbers of sequences were all the same, how much of a step is
// constant is not known: from none to all of it, which lets another number take anything between.
double SpeedModel::Nearest(const Measurement& m) const {
  const double predicted = Time().Seconds(std::llround(m.n));
  const double mean = sums_.n / sums_.weight;
  const double variance = sums_.nn / sums_.weight - mean * mean;
  if (variance > kSameNumbers * mean * mean) return predicted;
  const double flat = sums_.t / sums_.weight;
  const auto [low, high] = std::minmax({predicted, flat, flat * m.n / mean});
  return std::clamp(m.t, low, high);
}

void SpeedModel::Take(const Measurement& m) {
  for (double* sum : {&sums_.weight, &sums_.n, &sums_.nn, &sums_.t, &sums_.nt}) *sum *= kForgetting;
  sums_.weight += 1;
  sums_.n += m.n;
  sums_.nn += m.n * m.n;
  sums_.t += m.t;
  sums_.nt += m.n * m.t;
  ++sums_.measurements;
}

void SpeedModel::Turn(const Measurement& first, const Measurement& second) {
  const double scale = (first.ratio + second.ratio) / 2;
  for (double* sum : {&sums_.t, &sums_.nt}) *sum *= scale;
  for (double* sum : {&sums_.weight, &sums_.n, &sums_.nn, &sums_.t, &sums_.nt}) *sum *= kKeptInTurn;
  Take(first);
  Take(second);
}

StepTime SpeedModel::Time() const {
  const SpeedSums& s = sums_;
  const double weight = s.weight * (1 + kPull);
  const double mean = s.t / s.n;  // seconds for a sequence
  double slope = (weight * s.nt - s.n * s.t) / (weight * s.nn - s.n * s.n);
  if (!(slope >= kLeastSlope * mean)) slope = kLeastSlope * mean;  // NaN too
  const double constant = (s.t - slope * s.n) / s.weight;
  if (constant > kLeastConstant * s.t / s.weight) return {constant, slope};
  return {0, mean};
}

double SpeedModel::Uncertainty() const { return sums_.deviation / std::sqrt(sums_.weight); }

}  // namespace espalier
