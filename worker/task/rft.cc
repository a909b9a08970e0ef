#include "worker/task/rft.h"

#include <utility>

#include "common/base/status_macros.h"
#include "worker/generation/text_stream.h"
#include "worker/model/pretrained.h"
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
          .end_of_text = inputs.tokenizer->end_of_text(),
          .ends = StopIds(inputs.model_ends, *inputs.tokenizer)};
}

}  // namespace

Rft::Rft(RftInputs inputs)
    : inputs_(std::move(inputs)),
      table_(std::make_shared<RftTable>(TableOf(inputs_))),
      validation_(CountedOnly(inputs_.validation.get(), inputs_.spec.data().sequence_length())),
      learns_(table_) {}

absl::StatusOr<std::unique_ptr<Practice>> Rft::MakePractice(const PracticePlace& place) const {
  ASSIGN_OR_RETURN(std::unique_ptr<RolloutSource> source, inputs_.open_source(place.rollouts()));
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
  for (int64_t prompt = 0; prompt < inputs.training->size(); ++prompt) {
    RETURN_IF_ERROR(CheckRoom(spec, prompt, inputs.training->ids(prompt).size()));
  }
  ASSIGN_OR_RETURN(const DecoderConfig config, JobModelConfig(spec, dataset.manifest().vocab_size));
  inputs.model_ends = config.eos_token_ids;
  inputs.open_source = [spec, tokenizer = inputs.tokenizer,
                        folder = dataset.folder()](const RolloutPlace& place) {
    return OpenJobRollouts(place, spec, folder, *tokenizer);
  };
  return std::make_unique<Rft>(std::move(inputs));
}

}  // namespace espalier
