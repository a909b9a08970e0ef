#include "worker/task/open_trm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/model/pretrained.h"
#include "worker/task/deep_supervision.h"

namespace espalier {
namespace {

// An error for a table whose samples are longer than their rows.
absl::Status CheckWhole(const ExampleTable& table, int64_t positions) {
  const ExampleTable::Summary& summary = table.summary();
  if (summary.prompts_cut + summary.completions_cut == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the longest puzzle has ", (summary.longest - 1) / 2, " places and data.sequence_length is ",
      positions, "; a puzzle is learned whole: give as many or more"));
}

// An error for a table with a puzzle whose answer is not as long: else it would be met in the
// middle of a run.
absl::Status CheckEqualLengths(const ExampleTable& table) {
  for (int64_t id = 0; id < table.size(); ++id) {
    ASSIGN_OR_RETURN(const Samples one, table.Read({id}));
    const int64_t answers = std::count(one.counted.begin(), one.counted.end(), 1) - 1;
    const int64_t places =
        std::find(one.counted.begin(), one.counted.end(), 1) - one.counted.begin() + 1;
    if (answers == places) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "example ", id, " of the data has a prompt of ", places, " tokens and a completion of ",
        answers, "; a puzzle has an answer for each of its places: make them as long"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SampleTable>> Puzzles(const Dataset& dataset,
                                                           absl::string_view split,
                                                           int64_t positions) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const ExampleTable> table,
                   dataset.Examples(split, 2 * positions));
  RETURN_IF_ERROR(CheckWhole(*table, positions));
  RETURN_IF_ERROR(CheckEqualLengths(*table));
  return table;
}

absl::StatusOr<std::shared_ptr<const SampleTable>> Texts(const Dataset& dataset,
                                                         absl::string_view split,
                                                         int64_t positions) {
  if (dataset.manifest().holds == DataKind::kMasked) return dataset.Masked(split, positions);
  return dataset.Windows(split, positions);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> OpenTrm(const v1::JobSpec& spec, const Dataset& dataset) {
  using Kind = DeepSupervision::Kind;
  const int64_t positions = spec.data().sequence_length();
  const bool puzzles = dataset.manifest().holds == DataKind::kPromptCompletion;
  const auto open = [&](absl::string_view split) {
    return puzzles ? Puzzles(dataset, split, positions) : Texts(dataset, split, positions);
  };
  ASSIGN_OR_RETURN(std::shared_ptr<const SampleTable> training, open(kTrainSplit));
  absl::StatusOr<std::shared_ptr<const SampleTable>> validation = open(kValidationSplit);
  const bool none =
      absl::IsNotFound(validation.status()) || absl::IsFailedPrecondition(validation.status());
  if (!validation.ok() && !none) return validation.status();
  ASSIGN_OR_RETURN(const DecoderConfig config, JobModelConfig(spec, dataset.manifest().vocab_size));
  // Without recursion it is a model of another task, which the job's inputs refuse.
  const int64_t channels =
      config.recursion ? DeepSupervision::CarriedChannels(*config.recursion, config.hidden_size)
                       : 0;
  return std::make_unique<DeepSupervision>(
      puzzles ? Kind::kPuzzle : Kind::kText, positions, std::move(training),
      none ? nullptr : *std::move(validation), spec.train().seed(), channels);
}

}  // namespace espalier
