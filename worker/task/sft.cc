// The task `sft`: supervised fine-tuning on examples: prompts with their completions,
// conversations, or texts. A sample is one of them, or (data.packing) a row that several share; the
// tokens that the data say count, the others are only read.
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/data/packed_table.h"
#include "worker/task/next_token.h"

namespace espalier {
namespace {

template <typename Table>
absl::StatusOr<std::unique_ptr<Task>> OpenOn(
    absl::StatusOr<std::shared_ptr<const Table>> training,
    absl::StatusOr<std::shared_ptr<const Table>> validation, const v1::DataSpec& data) {
  if (!training.ok()) return training.status();
  const std::string warning = (*training)->summary().Warning(data.sequence_length());
  if (!warning.empty()) LogWarning(warning);
  if (!data.packing()) return NextToken::Open(*std::move(training), std::move(validation));
  auto packed = std::make_shared<const PackedTable>(*std::move(training), data.seed());
  LogInfo(packed->Summary());
  return NextToken::Open(std::move(packed), std::move(validation));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> OpenSft(const v1::JobSpec& spec, const Dataset& dataset) {
  const v1::DataSpec& data = spec.data();
  const int64_t length = data.sequence_length();
  if (dataset.manifest().holds == DataKind::kMasked) {
    return OpenOn(dataset.Masked(kTrainSplit, length), dataset.Masked(kValidationSplit, length),
                  data);
  }
  return OpenOn(dataset.Examples(kTrainSplit, length), dataset.Examples(kValidationSplit, length),
                data);
}

}  // namespace espalier
