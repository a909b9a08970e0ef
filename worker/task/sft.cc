// The task `sft`: supervised fine-tuning on prompts and completions. A sample is one of each; the
// tokens of the completion and its end count, those of the prompt are only read.
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/task/next_token.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<Task>> OpenSft(const v1::JobSpec& spec, const Dataset& dataset) {
  const int64_t length = spec.data().sequence_length();
  ASSIGN_OR_RETURN(std::shared_ptr<const ExampleTable> training,
                   dataset.Examples(kTrainSplit, length));
  const std::string warning = training->summary().Warning(length);
  if (!warning.empty()) LogWarning(warning);
  return NextToken::Open(std::move(training), dataset.Examples(kValidationSplit, length));
}

}  // namespace espalier
