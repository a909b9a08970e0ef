// SpeedModel: how long a node takes for its part of a step, learnt from the steps it reports by
// recursive least squares with forgetting. Used by planner.h, coordinator/core and
// coordinator/journal. Plain value: any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace espalier {

// Seconds for n sequences: constant + per_sequence * n, the first at least 0, the second above it.
struct StepTime {
  double constant = 0;
  double per_sequence = 1;
  double Seconds(int64_t sequences) const {
    return constant + per_sequence * static_cast<double>(sequences);
  }
};

// All that is remembered of the measurements, for the journal: sums over them, each weighing 0.9 of
// the next, and how far they lie from what was predicted.
struct SpeedSums {
  double weight = 0;
  double n = 0;   // sequences
  double nn = 0;  // their squares
  double t = 0;   // seconds
  double nt = 0;  // products of both
  // Mean distance of a measurement, as a fraction of the prediction.
  double deviation = 0.03;
  // How many there were, turns included.
  int64_t measurements = 0;
};

class SpeedModel {
 public:
  SpeedModel() = default;
  // From a file. Without measurements, unless all numbers are finite and can be sums of some.
  explicit SpeedModel(const SpeedSums& sums);

  // A step of so many sequences; nothing when the numbers cannot be those of a step. What lies far
  // from the prediction (15 %, or four deviations) is kept apart. The next one on the same side
  // makes it a turn: everything known is scaled by what both say and counts a quarter from then on.
  // Any other leaves it for what it was, one odd step.
  void Add(int64_t sequences, double seconds);

  bool measured() const { return sums_.measurements > 0; }
  // Only when measured. What numbers of sequences that hardly differ do not tell is put on
  // per_sequence.
  StepTime Time() const;
  // How far the prediction may be off, as a fraction of it: the deviation of a mean.
  double Uncertainty() const;
  const SpeedSums& sums() const { return sums_; }

 private:
  struct Measurement {
    double n = 0;
    double t = 0;
    // Of its prediction.
    double ratio = 1;
  };
  double Nearest(const Measurement& measurement) const;
  void Take(const Measurement& measurement);
  void Turn(const Measurement& first, const Measurement& second);

  SpeedSums sums_;
  // The last measurement, when it was far off.
  std::optional<Measurement> odd_;
};

}  // namespace espalier
