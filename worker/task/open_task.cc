#include "worker/task/open_task.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/task/dpo.h"
#include "worker/task/grpo.h"
#include "worker/task/next_token.h"
#include "worker/task/open_trm.h"
#include "worker/task/rft.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<Task>> OpenPretrain(const v1::JobSpec& spec,
                                                   const Dataset& dataset) {
  const int64_t length = spec.data().sequence_length();
  ASSIGN_OR_RETURN(std::shared_ptr<const WindowTable> training,
                   dataset.Windows(kTrainSplit, length));
  return NextToken::Open(std::move(training), dataset.Windows(kValidationSplit, length));
}

absl::StatusOr<std::unique_ptr<Task>> OpenTask(const v1::JobSpec& spec, const Dataset& dataset) {
  switch (spec.train().task()) {
    case v1::TASK_PRETRAIN:
      return OpenPretrain(spec, dataset);
    case v1::TASK_SFT:
      return OpenSft(spec, dataset);
    case v1::TASK_RFT:
      return OpenRft(spec, dataset);
    case v1::TASK_GRPO:
      return OpenGrpo(spec, dataset);
    case v1::TASK_TRM:
      return OpenTrm(spec, dataset);
    case v1::TASK_DPO:
      return OpenDpo(spec, dataset);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "train.task ", static_cast<int>(spec.train().task()),
          " is not one that this worker knows; allowed: pretrain, sft, rft, grpo, trm, dpo"));
  }
}

TaskUnits UnitsOf(v1::Task task) {
  switch (task) {
    case v1::TASK_RFT:
      return {.of_evaluations = "prompts", .loss = "1 - accuracy"};
    case v1::TASK_GRPO:
      return {.of_evaluations = "prompts", .loss = "minus the mean reward"};
    case v1::TASK_DPO:
      return {.of_steps = "pairs", .of_evaluations = "pairs", .loss = "nats per pair"};
    case v1::TASK_TRM:  // puzzles, or texts
      return {.of_steps = "samples", .of_evaluations = "samples", .loss = "nats"};
    default:
      return {};
  }
}

}  // namespace espalier
