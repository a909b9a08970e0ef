#include "worker/optimizer/validation_progress.h"

#include "absl/strings/str_format.h"
#include "common/base/random.h"

namespace espalier {

void ValidationProgress::Note(const v1::JobSpec& spec, Step evaluated, double loss) {
  if (evaluated.value() <= step) return;
  step = evaluated.value();
  if (loss < best() - spec.evaluate().min_delta()) {
    best_bits = std::bit_cast<uint64_t>(loss);
    best_step = step;
    without_gain = 0;
    without_gain_at_rate = 0;
    return;
  }
  ++without_gain;
  ++without_gain_at_rate;
  const v1::ScheduleSpec& schedule = spec.train().schedule();
  const int64_t patience = schedule.plateau_patience();
  if (patience == 0 || without_gain_at_rate < patience ||
      reductions >= schedule.plateau_reductions()) {
    return;
  }
  ++reductions;
  without_gain_at_rate = 0;
}

bool ValidationProgress::Ends(const v1::JobSpec& spec) const {
  const int64_t patience = spec.evaluate().patience();
  return patience > 0 && without_gain >= patience;
}

std::string ValidationProgress::WhyItEnds(const v1::JobSpec& spec) const {
  return absl::StrFormat(
      "in %d evaluations in a row (evaluate.patience) the validation loss was not lower than %.4f, "
      "of step %d, by more than %g (evaluate.min_delta)",
      without_gain, best(), best_step, spec.evaluate().min_delta());
}

uint64_t ValidationProgress::Fingerprint() const {
  uint64_t hash = MixBits(best_bits);
  for (const int64_t part : {step, best_step, without_gain, without_gain_at_rate, reductions}) {
    hash = MixBits(hash ^ static_cast<uint64_t>(part)) + 0x9e3779b97f4a7c15ULL;
  }
  return hash;
}

double ValidationProgress::RateFactor(const v1::JobSpec& spec) const {
  double factor = 1;
  for (int64_t i = 0; i < reductions; ++i) factor *= spec.train().schedule().plateau_factor();
  return factor;
}

}  // namespace espalier
