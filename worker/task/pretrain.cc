// The task `pretrain`: windows of text, every token of which counts.
#include <utility>

#include "common/base/status_macros.h"
#include "worker/task/next_token.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<Task>> OpenPretrain(const v1::JobSpec& spec,
                                                   const Dataset& dataset) {
  const int64_t length = spec.data().sequence_length();
  ASSIGN_OR_RETURN(std::shared_ptr<const WindowTable> training,
                   dataset.Windows(kTrainSplit, length));
  // A validation split that holds not one window is none.
  absl::StatusOr<std::shared_ptr<const WindowTable>> validation =
      dataset.Windows(kValidationSplit, length);
  const bool none =
      absl::IsNotFound(validation.status()) || absl::IsFailedPrecondition(validation.status());
  if (!validation.ok() && !none) return validation.status();  // damaged, say
  return std::make_unique<NextToken>(std::move(training), none ? nullptr : *std::move(validation));
}

}  // namespace espalier
