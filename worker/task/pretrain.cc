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
  return NextToken::Open(std::move(training), dataset.Windows(kValidationSplit, length));
}

}  // namespace espalier
