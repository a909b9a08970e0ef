#include "common/config/epochs.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace espalier {

int64_t StepsPerEpoch(int64_t samples, int64_t global_batch) {
  return (samples + global_batch - 1) / global_batch;
}

int64_t CompletionsOfSample(const v1::JobSpec& spec) {
  return spec.train().task() == v1::TASK_GRPO ? spec.train().rollout().samples() : 1;
}

bool NeedsSamples(const v1::JobSpec& spec) {
  return spec.train().has_epochs() && !spec.train().has_steps();
}

absl::Status ResolveEpochs(int64_t samples, v1::JobSpec& spec) {
  v1::TrainSpec& train = *spec.mutable_train();
  if (!train.has_epochs()) return absl::OkStatus();
  const int64_t of_epoch = StepsPerEpoch(samples, train.global_batch());
  const auto steps =
      static_cast<int64_t>(std::ceil(train.epochs() * static_cast<double>(of_epoch)));
  if (train.has_steps() && train.steps() != steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.steps is ", train.steps(), ", and train.epochs, which is ", train.epochs(),
        ", over ", samples, " samples in batches of ", train.global_batch(), " are ", steps,
        " steps; leave one of them out, or prepare the data anew if they differ from node to "
        "node"));
  }
  train.set_steps(steps);
  ResolveWarmup(spec);
  return absl::OkStatus();
}

void ResolveWarmup(v1::JobSpec& spec) {
  v1::ScheduleSpec& schedule = *spec.mutable_train()->mutable_schedule();
  if (!schedule.has_warmup_ratio() || !spec.train().has_steps()) return;
  const double steps = schedule.warmup_ratio() * static_cast<double>(spec.train().steps());
  schedule.set_warmup_steps(static_cast<int64_t>(std::ceil(steps)));
}

}  // namespace espalier
