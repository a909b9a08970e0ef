#include "worker/task/rft.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/rollout/job_rollouts.h"
#include "worker/task/rft_practice.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

std::shared_ptr<const SampleTable> CountedOnly(const PromptTable* prompts, int64_t length) {
  if (prompts == nullptr) return nullptr;
  return std::make_shared<RftTable>(
      RftTable::Options{.samples = prompts->size(), .sequence_length = length});
}

RftTable::Options TableOf(const RftInputs& inputs) {
  return {.samples = inputs.training->size(),
          .sequence_length = inputs.spec.data().sequence_length(),
          .end_of_text = inputs.tokenizer->end_of_text()};
}

}  // namespace

absl::Status RftTable::Fill(const PromptTable& prompts, const std::vector<RftRow>& rows) {
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  for (const RftRow& row : rows) {
    const std::vector<int32_t>& prompt = prompts.ids(row.prompt);
    ExampleSpan span{.prompt = static_cast<int64_t>(tokens.size())};
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    span.completion = static_cast<int64_t>(tokens.size());
    tokens.insert(tokens.end(), row.ids.begin(), row.ids.end());
    if (row.ids.empty() || row.ids.back() != options_.end_of_text) {
      tokens.push_back(options_.end_of_text);
    }
    span.end = static_cast<int64_t>(tokens.size());
    spans.push_back(span);
  }
  ASSIGN_OR_RETURN(ExampleTable table,
                   ExampleTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                                        std::make_shared<VectorExampleIndex>(std::move(spans)),
                                        {options_.sequence_length, options_.end_of_text}));
  const absl::MutexLock lock(&mutex_);
  if (rows_ == nullptr) rows_ = std::make_shared<const ExampleTable>(std::move(table));
  return absl::OkStatus();
}

std::shared_ptr<const ExampleTable> RftTable::rows() const {
  const absl::MutexLock lock(&mutex_);
  return rows_;
}

int64_t RftTable::Length(int64_t id) const {
  const std::shared_ptr<const ExampleTable> accepted = rows();
  return accepted == nullptr ? options_.sequence_length : accepted->Length(id % accepted->size());
}

double RftTable::mean_length() const {
  const std::shared_ptr<const ExampleTable> accepted = rows();
  if (accepted == nullptr) return 0;
  double sum = 0;
  for (int64_t row = 0; row < accepted->size(); ++row) {
    sum += static_cast<double>(accepted->Length(row));
  }
  return sum / static_cast<double>(accepted->size());
}

absl::StatusOr<Samples> RftTable::Read(std::vector<int64_t> ids) const {
  const std::shared_ptr<const ExampleTable> accepted = rows();
  if (accepted == nullptr) {
    return absl::FailedPreconditionError("completions are sampled before they are read");
  }
  std::vector<int64_t> of_rows;
  for (const int64_t id : ids) {
    if (id < 0 || id >= size()) {
      return absl::OutOfRangeError(absl::StrCat("sample ", id, " is wanted of ", size()));
    }
    of_rows.push_back(id % accepted->size());
  }
  ASSIGN_OR_RETURN(Samples samples, accepted->Read(std::move(of_rows)));
  samples.ids = std::move(ids);  // two uses of a row drop different values
  return samples;
}

Rft::Rft(RftInputs inputs)
    : inputs_(std::move(inputs)),
      table_(std::make_shared<RftTable>(TableOf(inputs_))),
      validation_(CountedOnly(inputs_.validation.get(), inputs_.spec.data().sequence_length())),
      learns_(table_) {}

absl::StatusOr<std::unique_ptr<Practice>> Rft::MakePractice(const PracticePlace& place) const {
  ASSIGN_OR_RETURN(std::unique_ptr<RolloutSource> source, inputs_.open_source(place.context));
  return std::unique_ptr<Practice>(
      std::make_unique<RftPractice>(place, inputs_, *table_, std::move(source)));
}

absl::StatusOr<std::unique_ptr<Task>> OpenRft(const v1::JobSpec& spec, const Dataset& dataset) {
  RftInputs inputs{.spec = spec,
                   .training = nullptr,
                   .validation = nullptr,
                   .tokenizer = nullptr,
                   .data_hash = dataset.manifest_hash(),
                   .open_source = nullptr};
  ASSIGN_OR_RETURN(inputs.training, dataset.Prompts(kTrainSplit));
  absl::StatusOr<std::shared_ptr<const PromptTable>> validation = dataset.Prompts(kValidationSplit);
  if (validation.ok()) {
    inputs.validation = *std::move(validation);
  } else if (!absl::IsNotFound(validation.status()) &&
             !absl::IsFailedPrecondition(validation.status())) {
    return validation.status();
  }
  ASSIGN_OR_RETURN(inputs.tokenizer, OpenTokenizer(dataset.folder()));
  inputs.open_source = [spec, tokenizer = inputs.tokenizer,
                        folder = dataset.folder()](const RankContext& context) {
    return OpenJobRollouts(context, spec, folder, *tokenizer);
  };
  return std::make_unique<Rft>(std::move(inputs));
}

}  // namespace espalier
