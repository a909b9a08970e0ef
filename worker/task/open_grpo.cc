// The task `grpo` of a job: its prompts, what samples and judges them, and the games that
// evaluations play.
#include <memory>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/data/row_renderer.h"
#include "worker/rollout/job_rollouts.h"
#include "worker/task/grpo.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

// Those of a split; none where it has none.
absl::StatusOr<std::vector<RolloutPrompt>> PromptsOf(const Dataset& dataset,
                                                     absl::string_view split) {
  const absl::StatusOr<std::shared_ptr<const PromptTable>> table = dataset.Prompts(split);
  const bool none = absl::IsNotFound(table.status()) || absl::IsFailedPrecondition(table.status());
  std::vector<RolloutPrompt> prompts;
  if (none && split == kValidationSplit) return prompts;
  RETURN_IF_ERROR(table.status());
  for (int64_t i = 0; i < (*table)->size(); ++i) {
    prompts.push_back({i, (*table)->ids(i), (*table)->record(i)});
  }
  return prompts;
}

// As `data prepare` gives the ids of a prompt.
absl::StatusOr<EncodeText> PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer) {
  ASSIGN_OR_RETURN(RowRenderer made, RowRenderer::Create(*tokenizer, {}));
  const auto renderer = std::make_shared<const RowRenderer>(std::move(made));
  return EncodeText(
      [tokenizer, renderer](const std::string& text) -> absl::StatusOr<std::vector<int32_t>> {
        ASSIGN_OR_RETURN(RenderedRow row, renderer->Render(PromptRow{text, "{}"}));
        return std::move(row.ids);
      });
}

absl::StatusOr<std::optional<WordleMatch>> MatchOf(
    const v1::JobSpec& spec, const Dataset& dataset, const GrpoPrompts& prompts,
    const std::shared_ptr<const Tokenizer>& tokenizer) {
  if (spec.evaluate().games() == 0 || prompts.validation.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const VerifierOptions options,
                   VerifierOptionsOf(spec.train().verifier(), dataset.folder()));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Load(options.words, options.secrets));
  ASSIGN_OR_RETURN(const EncodeText encode, PromptEncoder(tokenizer));
  ASSIGN_OR_RETURN(WordleMatch match,
                   MakeWordleMatch(std::move(vocabulary), {prompts.training, prompts.validation},
                                   spec.evaluate().games(), encode));
  if (match.secrets.empty()) return std::nullopt;
  return match;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> OpenGrpo(const v1::JobSpec& spec, const Dataset& dataset) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, OpenTokenizer(spec.data().path()));
  GrpoPrompts prompts;
  ASSIGN_OR_RETURN(prompts.training, PromptsOf(dataset, kTrainSplit));
  ASSIGN_OR_RETURN(prompts.validation, PromptsOf(dataset, kValidationSplit));
  ASSIGN_OR_RETURN(prompts.games, MatchOf(spec, dataset, prompts, tokenizer));
  prompts.data_hash = dataset.manifest_hash();
  const auto open = [tokenizer, spec, data = dataset.folder()](const RolloutPlace& place) {
    return OpenJobRollouts(place, spec, data, *tokenizer);
  };
  return Grpo::Create(spec, std::move(prompts), open);
}

}  // namespace espalier
