// What changes as training goes on: a value that moves along a line (the temperature of samples),
// and parts of a reward that begin later. Used by wordle_rewards.h and worker/rollout. Plain
// values: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/reward/verifier.h"

namespace espalier {

// From `from` to `to` in equal steps over the first `share` of training, `to` from then on.
struct LinearSchedule {
  double from = 1;
  double to = 1;
  double share = 0;  // 0 to 1; 0: `to` at once

  double At(double progress) const {
    if (progress >= share) return to;
    return from + (to - from) * std::max(0.0, progress) / share;
  }
};

// INVALID_ARGUMENT: a temperature that is not positive, or a share that is none.
inline absl::Status CheckTemperatures(const LinearSchedule& schedule) {
  if (!(schedule.from > 0 && schedule.to > 0 && schedule.share >= 0 && schedule.share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the temperature goes from ", schedule.from, " to ", schedule.to, " over ", schedule.share,
        " of training; temperatures are above 0, and the share is 0 to 1"));
  }
  return absl::OkStatus();
}

// A part of a reward that counts from a step on.
struct ComponentStart {
  int64_t from_step = 0;
  bool IsOn(const TrainingMoment& moment) const { return moment.step >= from_step; }
};

}  // namespace espalier
