// ValidationProgress: whether the validation loss still falls. It lowers the learning rate of a run
// that is on a plateau, and ends one that learns nothing more. A part of what is trained: it is in
// checkpoints and in the warm state, so that a run goes on with it as if nothing had happened. Used
// by worker/state: replica.h; worker/train: step_boundary.h, milestones.cc, trainer.cc. Plain
// value.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// Without gaps: it travels as bytes.
struct ValidationProgress {
  int64_t step = 0;  // committed steps at the newest evaluation that counted; 0: none did
  uint64_t best_bits = std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity());
  int64_t best_step = 0;
  int64_t without_gain = 0;          // evaluations in a row
  int64_t without_gain_at_rate = 0;  // the same, since the learning rate was lowered
  int64_t reductions = 0;            // of the learning rate

  // The lowest loss, in nats; infinity: none yet.
  double best() const { return std::bit_cast<double>(best_bits); }
  // Of the newest evaluation; one that is not finite is no gain. A step counts once.
  void Note(const v1::JobSpec& spec, Step evaluated, double loss);
  // The job has had its patience (evaluate.patience).
  bool Ends(const v1::JobSpec& spec) const;
  // Why it has, for people.
  std::string WhyItEnds(const v1::JobSpec& spec) const;
  // A number that is another for another state.
  uint64_t Fingerprint() const;
  // Of the schedule's learning rate, so far: plateau_factor for each reduction.
  double RateFactor(const v1::JobSpec& spec) const;
};

}  // namespace espalier
